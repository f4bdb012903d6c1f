"""What a decision log's files are made of, for whoever writes them and whoever reads them."""
