"""The parts of a wheel set on a machine: wheels to install, its ROCm, the checkout of its JAX."""

from pathlib import Path

from rocwheel import rocm
from rocwheel.base.download import without_secrets
from rocwheel.base.errors import ConfigError, WheelError
from rocwheel.base.git import Checkout
from rocwheel.base.values import Plain
from rocwheel.base.versions import PythonVersion
from rocwheel.records.manifest import Manifest, WheelEntry
from rocwheel.records.places import Place


def rocm_of(
    manifest: Manifest, named: str, *, exact: bool, cache: Path, cwd: Path
) -> rocm.RocmPlan:
    """Return the plan of the ROCm that `named` names, by default the manifest's own.

    An `exact` one must have the manifest's digest, from any source. Raises ConfigError.
    """
    own = manifest.rocm
    if own.origin != "directory" and not named:
        return rocm.recorded(own, cache=cache)
    if not named:
        raise ConfigError(
            "which ROCm? The wheel set was built with a folder of ROCm",
            hint="add --rocm with a tarball or a folder; for a gate also pip:REQUIREMENT",
        )
    return rocm.plan(
        named,
        sha256=own.sha256 if exact and own.origin == "tarball" else None,
        version=own.version if exact else None,
        cache=cache,
        cwd=cwd,
    )


def rocm_option(source: str) -> tuple[str, ...]:
    """Return the option that names the ROCm of a set; a public URL stands in its manifest."""
    is_recorded = "://" in source and source == without_secrets(source)
    return () if is_recorded else (f"--rocm={source}",)


def jax_of(manifest: Manifest, *, cache: Path) -> Checkout:
    """Return the checkout of the JAX that a set was built of. Raises ConfigError."""
    jax = manifest.jax
    if not jax.commit or jax.dirty:
        raise ConfigError(
            "the wheels name no JAX commit to take the tests from",
            hint="add --jax-tests with a JAX checkout",
        )
    return checkout(jax.repository, jax.commit, ref=f"jax-v{manifest.jax_version}", cache=cache)


def checkout(repository: str, commit: str, *, ref: str = "", cache: Path) -> Checkout:
    """Return where a commit of JAX lies on this machine; `ref` is a branch or tag that has it."""
    folder = cache / "gate" / "jax" / commit
    return Checkout(repository=repository, ref=ref, commit=commit, folder=folder)


class WheelsUnderTest(Plain, frozen=True, kw_only=True):
    """The wheels of a set that a gate installs and tests, for one CPython."""

    jax_version: str
    wheels: tuple[WheelEntry, ...]
    origin: Path | Place  # where those that were built lie; the others are in upstream's index

    @property
    def place(self) -> Place | None:
        return None if isinstance(self.origin, Path) else self.origin

    @property
    def stored(self) -> dict[str, str]:
        """File names and SHA-256 of the wheels that are brought from the store."""
        built = (wheel for wheel in self.wheels if wheel.origin == "built" and self.place)
        return {wheel.filename: wheel.sha256 for wheel in built}

    def path(self, wheel: WheelEntry, brought: Path) -> Path | None:
        """Return where a wheel is installed from; None for one of an index."""
        if wheel.origin != "built":
            return None
        return (self.origin if isinstance(self.origin, Path) else brought) / wheel.filename

    def requirement(self, wheel: WheelEntry, brought: Path) -> str:
        """Return the line of a requirements file that allows these bytes and no others."""
        path = self.path(wheel, brought)
        what = f" @ {path.as_uri()}" if path else f"=={wheel.version}"
        return f"{wheel.project}{what} --hash=sha256:{wheel.sha256}"


def of_manifest(manifest: Manifest, python: PythonVersion, origin: Path | Place) -> WheelsUnderTest:
    """Return the wheels of a manifest that lie in a folder or in a store. Raises WheelError."""
    if str(python) not in manifest.pythons:
        raise WheelError(
            f"the wheel set has no CPython {python}", hint=f"it has {', '.join(manifest.pythons)}"
        )
    return WheelsUnderTest(
        jax_version=manifest.jax_version,
        wheels=tuple(manifest.of_python(python)),
        origin=origin.resolve() if isinstance(origin, Path) else origin,
    )
