"""Threads, guards, patches and files that every other package builds on."""
