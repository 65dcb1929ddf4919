"""Sources: which JAX and XLA are built, where they are, and what they contain."""

from rocwheel.source import pins
from rocwheel.source.bazelrc import RcFiles as RcFiles
from rocwheel.source.bazelrc import joined as joined
from rocwheel.source.bazelrc import read_rc as read_rc
from rocwheel.source.bazelrc import variables as variables
from rocwheel.source.pins import Pins as Pins
from rocwheel.source.tree import SourcePlan as SourcePlan
from rocwheel.source.tree import SourceRequest as SourceRequest
from rocwheel.source.tree import SourceTree as SourceTree
from rocwheel.source.tree import has_target as has_target
from rocwheel.source.tree import plan as plan
from rocwheel.source.tree import preview as preview
from rocwheel.source.tree import resolve as resolve

load_layouts, load_pins, pins_of = pins.load_layouts, pins.load, pins.of
