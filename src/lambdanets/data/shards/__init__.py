"""WebDataset shards in a folder or at a URL: writing, verifying, downloading and reading."""
