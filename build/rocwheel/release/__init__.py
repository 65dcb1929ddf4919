"""The release room: staging, promotion, withdrawal, retention, and what stands where.

Every command makes a plan (a value that can be printed), then applies exactly that plan. `policy`
decides, `operations` makes each change resumable, the other modules are one command each.
"""
