"""Saved profiles in a browser: readers, sums of a selection, exports, the page and its server."""
