"""`dist_wheels`: from a ROCm source and a JAX source tree to a verified wheelhouse.

`plan` checks what can be checked without touching anything; `build` goes through the stages:
sources, ROCm, Bazel, wheels, wheelhouse. Each stage is a value that the next one takes.
"""

from rocwheel.dist.assemble import Result as Result
from rocwheel.dist.assemble import build as build
from rocwheel.dist.assemble import plan_rebuild as plan_rebuild
from rocwheel.dist.assemble import rebuild as rebuild
from rocwheel.dist.build_request import Plan as Plan
from rocwheel.dist.build_request import Request as Request
from rocwheel.dist.build_request import check_words as check_words
from rocwheel.dist.build_request import plan as plan
from rocwheel.dist.build_request import resolved as resolved
from rocwheel.dist.inputs import gather as gather
from rocwheel.dist.offline import fill as fill
from rocwheel.dist.offline import plan_offline as plan_offline
from rocwheel.dist.output import contents as contents
from rocwheel.dist.output import cost as cost
from rocwheel.dist.output import document as document
from rocwheel.dist.output import dry_run as dry_run
from rocwheel.dist.output import fetching as fetching
from rocwheel.dist.output import lines as lines
from rocwheel.dist.output import pasteable as pasteable
from rocwheel.dist.output import table as table
from rocwheel.dist.output import writing as writing
