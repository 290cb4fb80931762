"""The instructor's side of the assignments: versions of a sheet, the sandbox, the grader.

It stands in `tools/` and not in the library: students install the library, and nothing of this.

    python -m course build                    # student, solution and autograder versions
    python -m course grade FOLDER             # what `make grade SUBMISSIONS=FOLDER` runs
    python -m course protections              # what this machine really isolates

One module per concern. `sheet` reads a source notebook, `versions` writes what comes from it.
`submissions` finds and reads notebooks that nobody vouches for. `warm` is the clean process that
forks one sandboxed process per submission (`confine`, `syscalls`), which runs `inside`; what comes
back is plain data (`plain`). `judge` holds the expected values and never runs a submission's code.
`protections` measures what holds, `grade` puts it all together, `feedback` writes the pages.
"""
