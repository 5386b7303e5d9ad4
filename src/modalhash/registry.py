"""The table of methods. Adding one: a module in ``methods/`` and a row here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modalhash.base import CrossModalHasher


@dataclass(frozen=True)
class Method:
    """What is known of a method without importing it."""

    name: str
    path: str
    """``module:Class``."""
    title: str
    year: int | None
    citation: str
    supervised: bool
    pairing: str
    """``"none"`` (not used), ``"optional"`` or ``"needed"``."""
    modalities: str
    """``"1+"``, ``"2+"`` or ``"2"``."""
    equations: str
    """Where they come from: authors' code, paper, or a reconstruction (then a re-implementation)."""
    control: bool = False
    """Not a method to use but a level to compare with."""

    @property
    def reimplementation(self) -> bool:
        """Neither code nor full text of the authors was at hand."""
        return self.equations.startswith("re-implementation")


METHODS: dict[str, Method] = {
    method.name: method
    for method in [
        Method(
            name="amsh",
            path="modalhash.methods.amsh:AMSH",
            title="Adaptive Marginalized Semantic Hashing",
            year=2023,
            citation="K. Luo, C. Zhang, H. Li, X. Jia, C. Chen. Adaptive Marginalized Semantic Hashing for "
            "Unpaired Cross-Modal Retrieval. IEEE Transactions on Multimedia, 2023",
            supervised=True,
            pairing="none",
            modalities="1+",
            equations="paper and authors' code",
        ),
        Method(
            name="srlch",
            path="modalhash.methods.srlch:SRLCH",
            title="Subspace Relation Learning for Cross-modal Hashing",
            year=2018,
            citation="L. Liu et al. Index and Retrieve Multimedia Data: Cross-Modal Hashing by Learning Subspace "
            "Relation. DASFAA 2018. doi:10.1007/978-3-319-91458-9_37",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="authors' code",
        ),
        Method(
            name="batch",
            path="modalhash.methods.batch:BATCH",
            title="A Scalable Asymmetric Discrete Cross-Modal Hashing",
            year=2020,
            citation="Y. Wang et al. BATCH: A Scalable Asymmetric Discrete Cross-Modal Hashing. IEEE Transactions "
            "on Knowledge and Data Engineering, 2020. doi:10.1109/TKDE.2020.2974825",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="authors' code",
        ),
        Method(
            name="dch",
            path="modalhash.methods.dch:DCH",
            title="Discriminative Cross-modal Hashing",
            year=2017,
            citation="X. Xu, F. Shen, Y. Yang, H. T. Shen, X. Li. Learning Discriminative Binary Codes for "
            "Large-scale Cross-modal Retrieval. IEEE Transactions on Image Processing 26(5), 2017",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="public copy derived from the authors' code",
        ),
        Method(
            name="scratch",
            path="modalhash.methods.scratch:SCRATCH",
            title="Scalable Discrete Matrix Factorization Hashing",
            year=2018,
            citation="C.-X. Li, Z.-D. Chen, P.-F. Zhang, X. Luo, L. Nie, W. Zhang, X.-S. Xu. SCRATCH: A Scalable "
            "Discrete Matrix Factorization Hashing for Cross-Modal Retrieval. ACM Multimedia, 2018",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="authors' code",
        ),
        Method(
            name="cmfh",
            path="modalhash.methods.cmfh:CMFH",
            title="Collective Matrix Factorization Hashing",
            year=2014,
            citation="G. Ding, Y. Guo, J. Zhou. Collective Matrix Factorization Hashing for Multimodal Data. "
            "CVPR, 2014",
            supervised=False,
            pairing="needed",
            modalities="2",
            equations="authors' code",
        ),
        Method(
            name="smfh",
            path="modalhash.methods.smfh:SMFH",
            title="Supervised Matrix Factorization Hashing",
            year=2016,
            citation="J. Tang, K. Wang, L. Shao. Supervised Matrix Factorization Hashing for Cross-Modal Retrieval. "
            "IEEE Transactions on Image Processing 25(7), 2016; and H. Liu, R. Ji, Y. Wu, G. Hua. Supervised Matrix "
            "Factorization for Cross-Modality Hashing. IJCAI, 2016",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="authors' code",
        ),
        Method(
            name="fsh",
            path="modalhash.methods.fsh:FSH",
            title="Fusion Similarity Hashing",
            year=2017,
            citation="H. Liu, R. Ji, Y. Wu, F. Huang, B. Zhang. Cross-Modality Binary Code Learning via Fusion "
            "Similarity Hashing. CVPR, 2017",
            supervised=False,
            pairing="needed",
            modalities="2",
            equations="authors' code (released as a re-writing of what the paper ran)",
        ),
        Method(
            name="cre",
            path="modalhash.methods.cre:CRE",
            title="Collective Reconstructive Embeddings",
            year=2019,
            citation="M. Hu, Y. Yang, F. Shen, N. Xie, R. Hong, H. T. Shen. Collective Reconstructive Embeddings "
            "for Cross-Modal Hashing. IEEE Transactions on Image Processing 28(6), 2019",
            supervised=False,
            pairing="needed",
            modalities="2",
            equations="re-implementation: derived from the paper's abstract",
        ),
        Method(
            name="edmh",
            path="modalhash.methods.edmh:EDMH",
            title="Enhanced Discrete Multi-modal Hashing",
            year=2022,
            citation="Y. Chen, H. Zhang, Z. Tian, J. Wang, D. Zhang, X. Li. Enhanced Discrete Multi-Modal Hashing: "
            "More Constraints Yet Less Time to Learn. IEEE Transactions on Knowledge and Data Engineering 34(3), 2022",
            supervised=True,
            pairing="none",
            modalities="1+",
            equations="re-implementation: derived from the paper's abstract and from the authors' SCDH",
        ),
        Method(
            name="fmh",
            path="modalhash.methods.fmh:FMH",
            title="Flexible Multi-modal Hashing",
            year=2020,
            citation="L. Zhu, X. Lu, Z. Cheng, J. Li, H. Zhang. Flexible Multi-modal Hashing for Scalable Multimedia "
            "Retrieval. ACM Transactions on Intelligent Systems and Technology 11(2), 2020",
            supervised=True,
            pairing="none",
            modalities="1+",
            equations="re-implementation: derived from the paper's abstract and from the code of the authors' FOMH",
        ),
        Method(
            name="gsph",
            path="modalhash.methods.gsph:GSPH",
            title="Generalized Semantic Preserving Hashing",
            year=2017,
            citation="D. Mandal, K. N. Chaudhury, S. Biswas. Generalized Semantic Preserving Hashing for n-Label "
            "Cross-Modal Retrieval. CVPR, 2017",
            supervised=True,
            pairing="optional",
            modalities="2+",
            equations="authors' code",
        ),
        Method(
            name="sapmh",
            path="modalhash.methods.sapmh:SAPMH",
            title="Supervised Adaptive Partial Multi-view Hashing",
            year=2021,
            citation="C. Zheng, L. Zhu, Z. Cheng, J. Li, A.-A. Liu. Adaptive Partial Multi-View Hashing for Efficient "
            "Social Image Retrieval. IEEE Transactions on Multimedia, 2021",
            supervised=True,
            pairing="optional",
            modalities="1+",
            equations="authors' code, corrected and brought to one scale (variant='authors' is the code)",
        ),
        Method(
            name="uapmh",
            path="modalhash.methods.sapmh:UAPMH",
            title="Unsupervised Adaptive Partial Multi-view Hashing",
            year=2021,
            citation="C. Zheng, L. Zhu, Z. Cheng, J. Li, A.-A. Liu. Adaptive Partial Multi-View Hashing for Efficient "
            "Social Image Retrieval. IEEE Transactions on Multimedia, 2021",
            supervised=False,
            pairing="optional",
            modalities="1+",
            equations="authors' code",
        ),
        Method(
            name="rucmh",
            path="modalhash.methods.rucmh:RUCMH",
            title="Robust Unsupervised Cross-Modal Hashing",
            year=2020,
            citation="M. Cheng, L. Jing, M. K. Ng. Robust Unsupervised Cross-modal Hashing for Multimedia Retrieval. "
            "ACM Transactions on Information Systems 38(3), 2020. doi:10.1145/3389547",
            supervised=False,
            pairing="optional",
            modalities="1+",
            equations="re-implementation: reconstructed from the paper's abstract",
        ),
        Method(
            name="ucmh",
            path="modalhash.methods.ucmh:UCMH",
            title="Unpaired Cross-Modal Hashing with matrix factorization",
            year=2020,
            citation="J. Gao, W. Zhang, F. Zhong, Z. Chen. UCMH: Unpaired cross-modal hashing with matrix "
            "factorization. Neurocomputing 418, 2020",
            supervised=True,
            pairing="none",
            modalities="1+",
            equations="re-implementation: reconstructed from descriptions of the method",
        ),
        Method(
            name="chance",
            path="modalhash.methods.chance:Chance",
            title="Random codes",
            year=None,
            citation="none: random codes, the level below which nothing was learned",
            supervised=False,
            pairing="none",
            modalities="1+",
            equations="none: a hash of the item",
            control=True,
        ),
        Method(
            name="cca-itq",
            path="modalhash.methods.cca_itq:CCAITQ",
            title="Canonical correlations with iterative quantization",
            year=None,
            citation="Y. Gong, S. Lazebnik, A. Gordo, F. Perronnin. Iterative Quantization: A Procrustean Approach "
            "to Learning Binary Codes for Large-Scale Image Retrieval. IEEE TPAMI 35(12), 2013",
            supervised=False,
            pairing="needed",
            modalities="2",
            equations="paper, with the other modality in the place of the labels",
            control=True,
        ),
        Method(
            name="label-oracle",
            path="modalhash.methods.label_oracle:LabelOracle",
            title="Codes from the true labels",
            year=None,
            citation="none: codes from the true labels, the level to aim at",
            supervised=True,
            pairing="none",
            modalities="1+",
            equations="none: class codes and a ridge regression",
            control=True,
        ),
    ]
}


def info(name: str) -> Method:
    """The row of a method."""
    try:
        return METHODS[name.lower()]
    except KeyError:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(METHODS)}") from None


def get(name: str) -> type[CrossModalHasher]:
    """The class of a method.

    Examples
    --------
    >>> get("amsh").__name__
    'AMSH'
    """
    module, _, cls = info(name).path.partition(":")
    found: type[CrossModalHasher] = getattr(import_module(module), cls)
    return found


def name_of(cls: type) -> str:
    """The name under which a class is registered."""
    path = f"{cls.__module__}:{cls.__name__}"
    for method in METHODS.values():
        if method.path == path:
            return method.name
    raise ValueError(f"{path} is not in the registry; only registered methods can be saved")
