"""Runtime images: a released wheel set with ROCm and a CPython, tested as the bytes users pull.

`recipe` is what ci/images.yaml says, `closure` which files of ROCm the wheels need, `making` how an
image comes to be, `trial` the gate's engine in it, `job` how it gets to a registry, `record` what
the store remembers of it.
"""
