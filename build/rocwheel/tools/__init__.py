"""Commands beside the pipeline: demo, dev, doctor, compat, pins and the cache."""
