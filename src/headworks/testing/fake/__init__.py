"""The parts of the fake engine (`headworks.testing.fake_engine`): an engine model behind a real vLLM's HTTP surface."""
