"""What AMD's page "JAX compatibility" lists, and the names these things really have.

The page names some functions that never existed (`jax.nn.conv`), some that have moved
(`jax.extend.ffi`) and some that are gone. Each row maps a documented name to an importable one for
a range of JAX versions; a row without a name for the JAX at hand says why. The page is that of
ROCm 6.3; `tests/data/jax_compatibility.csv` holds its names, and a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

ALWAYS = ">=0.8"


@dataclass(frozen=True)
class Row:
    """One documented name."""

    documented: str
    names: tuple[tuple[str, str], ...]  # (JAX versions, importable name)
    missing: str = ""  # why there is none outside these ranges

    def name(self, jax_version: str) -> str | None:
        """The name in this JAX; a nightly counts as the release it precedes."""
        base = Version(Version(jax_version).base_version)
        return next((name for range_, name in self.names if base in SpecifierSet(range_)), None)


def real(name: str) -> Row:
    return Row(name, ((ALWAYS, name),))


def instead(documented: str, name: str) -> Row:
    return Row(documented, ((ALWAYS, name),))


SPARSE_DOT = instead("jax.experimental.sparse.dot", "jax.experimental.sparse.bcoo_dot_general")
SPARSE_MATMUL = instead("jax.numpy.matmul", "jax.experimental.sparse.BCOO.__matmul__")
SPARSE_SOLVERS = instead("sparse linear system solvers", "jax.experimental.sparse.linalg.spsolve")

# "Critical ROCm libraries for JAX": library -> the functions of its "Used in" column
LIBRARIES: dict[str, tuple[Row, ...]] = {
    "hipBLAS": (
        real("jax.numpy.matmul"),
        real("jax.lax.dot"),
        real("jax.lax.dot_general"),
        real("jax.numpy.dot"),
        real("jax.numpy.einsum"),
    ),
    "hipBLASLt": (real("jax.numpy.matmul"), real("jax.lax.dot")),
    "hipCUB": (
        real("jax.numpy.sum"),
        real("jax.numpy.mean"),
        real("jax.numpy.prod"),
        real("jax.numpy.max"),
        real("jax.numpy.min"),
        real("jax.numpy.cumsum"),
        real("jax.numpy.cumprod"),
        real("jax.numpy.sort"),
        real("jax.numpy.argsort"),
    ),
    "hipFFT": (real("jax.numpy.fft"),),
    "hipRAND": (
        real("jax.random.uniform"),
        real("jax.random.normal"),
        real("jax.random.randint"),
        real("jax.random.split"),
    ),
    "hipSOLVER": (
        real("jax.numpy.linalg.solve"),
        instead("matrix factorizations", "jax.scipy.linalg.lu"),
        real("jax.numpy.linalg.svd"),
        real("jax.numpy.linalg.eig"),
    ),
    "hipSPARSE": (
        SPARSE_MATMUL,
        SPARSE_DOT,
        SPARSE_SOLVERS,
        instead("sparse data handling", "jax.experimental.sparse.CSR"),
    ),
    "hipSPARSELt": (
        Row(
            "jax.numpy.matmul",
            ((">=0.8,<0.10", "jax.experimental.sparse.nm.nm_spmm"),),
            missing="JAX 0.10 removed N:M sparsity, the only thing that used hipSPARSELt",
        ),
        SPARSE_DOT,
        SPARSE_SOLVERS,
    ),
    "MIOpen": (
        instead("jax.nn.conv", "jax.lax.conv_general_dilated"),
        instead("pooling", "jax.lax.reduce_window"),
        real("jax.nn.relu"),
        instead("jax.nn.batch_norm", "jax.nn.standardize"),
        instead("recurrent neural networks", "jax.experimental.rnn.lstm_ref"),
    ),
    "RCCL": (
        instead("pmap", "jax.pmap"),
        instead("jax.distributed", "jax.distributed.initialize"),
        instead("all-reduce", "jax.lax.psum"),
        instead("broadcast", "jax.lax.all_gather"),
        instead("scatter", "jax.lax.psum_scatter"),
    ),
    "rocThrust": (real("jax.numpy.sum"), real("jax.pmap"), real("jax.numpy.cumsum")),
}

# What the page does not list and these libraries do for JAX all the same
BEYOND: dict[str, tuple[Row, ...]] = {
    "hipBLAS": (real("jax.scipy.linalg.solve_triangular"),),
    "hipBLASLt": (real("jax.nn.dot_product_attention"),),
    "hipSOLVER": (
        real("jax.numpy.linalg.cholesky"),
        real("jax.numpy.linalg.qr"),
        real("jax.numpy.linalg.eigh"),
    ),
    "hipSPARSE": (real("jax.experimental.sparse.BCSR"), real("jax.experimental.sparse.COO")),
    "MIOpen backward": (real("jax.lax.conv_general_dilated"),),
}

STATS = (
    "beta", "betabinom", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma", "gennorm",
    "geom", "laplace", "logistic", "multinomial", "multivariate_normal", "nbinom", "norm",
    "pareto", "poisson", "t", "truncnorm", "uniform", "vonmises", "wrapcauchy",
)  # fmt: skip

# "Supported and unsupported features": the modules and APIs of its tables
MODULES: tuple[Row, ...] = (
    *(
        real(f"jax.{name}")
        for name in (
            "numpy", "scipy", "lax", "random", "sharding", "dlpack", "distributed", "dtypes",
            "image", "nn", "ops", "profiler", "stages", "tree", "tree_util", "typing", "extend",
            "example_libraries", "experimental", "lib",
        )
    ),
    Row("jax_triton", (), missing="a project of its own, not part of any wheel of this set"),
    *(
        real(f"jax.scipy.{name}")
        for name in (
            "cluster", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize",
            "signal", "spatial.transform", "sparse.linalg", "special", "stats",
        )
    ),
    instead("jax.scipy.stats.bernouli", "jax.scipy.stats.bernoulli"),
    *(real(f"jax.scipy.stats.{name}") for name in STATS),
    instead("jax.extend.ffi", "jax.ffi"),
    real("jax.extend.linear_util"),
    real("jax.extend.mlir"),
    real("jax.extend.random"),
    *(
        real(f"jax.experimental.{name}")
        for name in (
            "checkify", "compilation_cache.compilation_cache", "custom_partitioning", "jet",
            "key_reuse", "mesh_utils", "multihost_utils", "pallas", "pjit",
            "serialize_executable", "shard_map", "sparse",
        )
    ),
    instead("jax.experimental.enable_x64", "jax.enable_x64"),
    Row(
        "jax.experimental.disable_x64",
        ((">=0.8,<0.9", "jax.experimental.disable_x64"), (">=0.9", "jax.enable_x64")),
    ),
    real("jax.experimental.pallas.mosaic_gpu"),
    real("jax.experimental.pallas.tpu"),
    real("jax.experimental.pallas.triton"),
    real("jax.experimental.sparse.linalg"),
    real("jax.experimental.sparse.sparsify"),
    instead("jax.experimental.sparsify", "jax.experimental.sparse.sparsify"),
    *(real(f"jax.experimental.sparse.{name}") for name in ("BCOO", "BCSR", "CSR", "COO")),
    Row(
        "jax.experimental.sparse.NM",
        ((">=0.8,<0.10", "jax.experimental.sparse.nm"),),
        missing="JAX 0.10 removed N:M sparsity",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Unsupported:
    """A feature the page says ROCm does not support; `rocm` and `jax` are where that holds.

    Where it works after all, its test fails and says so: then the range here is too wide.
    """

    feature: str
    name: str  # what is tried
    library: str
    rocm: str = ">=5"
    jax: str = ALWAYS

    def fails_on(self, backend: str, *, rocm: str, jax_version: str) -> bool:
        """Whether it is expected to fail: on ROCm only, and only in the versions of its ranges."""
        return (
            backend == "rocm"
            and SpecifierSet(self.rocm).contains(Version(rocm), prereleases=True)
            and SpecifierSet(self.jax).contains(Version(jax_version), prereleases=True)
        )


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported("Mixed Precision with TF32", "tf32", "hipBLASLt"),
    Unsupported("RNN support", "rnn", "MIOpen"),
    Unsupported("XLA int4 support", "int4", "hipBLASLt"),
    # a transformation of Python functions; JAX's own tests of it leave out no ROCm since 7
    Unsupported("jax.experimental.sparsify", "sparsify", "hipSPARSE", rocm=">=5,<7"),
)
