"""A bounded reliability run: ``make soak``; see docs/reliability.md.

`plan` lists the scenarios. Each is a program of its own (`fork_storm`, `thread_churn`, …) that a `runner` starts with a
`collector` of its own, watches from outside and judges by its promises.
"""
