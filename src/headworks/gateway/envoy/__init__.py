"""For gateways that are Envoy: the same gate, asked over gRPC (H5, decision 51; the extra `envoy`).

`port.py` is imported only where `server.grpc` names an address: nobody else needs gRPC, or pays for it.
"""
