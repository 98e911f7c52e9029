"""The byte format between capture and pipeline: its records, their writer and their reader."""
