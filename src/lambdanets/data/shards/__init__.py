"""Images in WebDataset shards, in a folder or at a URL: written, checked, fetched and read."""
