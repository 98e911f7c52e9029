"""Raw snapshots to samples, samples to records, records to batches for a sink."""
