"""Methods by name: those of the package, those of other installed packages, and any class as ``module:Class``.

A method of the package is a module in ``methods/`` and a row here. A method outside needs neither: a class derived
from :class:`modalhash.methods.base.CrossModalHasher` is found by ``"module:Class"``, and under a short name if its
package registers it as an entry point::

    [project.entry-points."modalhash.methods"]
    mine = "mypackage.module:Mine"
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modalhash.core.imports import import_class

if TYPE_CHECKING:
    from modalhash.methods.base import CrossModalHasher

ENTRY_POINTS = "modalhash.methods"
"""The group of entry points by which a package registers methods."""
INTERFACE = (
    *("supervised", "needs_pairs", "max_modalities"),
    *("fit", "transform", "decision_function", "get_params", "set_params", "save"),
)
"""What a class outside the package must have; CrossModalHasher brings all of it."""


@dataclass(frozen=True)
class Method:
    """What is known of a method; of those in :data:`METHODS`, without importing them."""

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
    """``"1+"``, ``"2+"``, ``"2"`` or, outside the package, ``"1 to 3"``."""
    equations: str
    """Where they come from: authors' code, paper, a reconstruction (then a re-implementation), or outside."""
    codes: str = "unknown"
    """``"discrete"`` (±1 in every step), ``"relaxed"`` (real numbers, signs at the end) or ``"random"``."""
    kernel: str = "unknown"
    """``"anchors"`` (similarities to them), ``"none"``; or what a parameter chooses, the default first."""
    growth: str = "unknown"
    """How the time of a fit grows with the number n of training items."""
    best_at: str = "not yet measured"
    """What the measured tables (rlh.md, paired.md and unpaired.md in docs/measurements) say for it."""
    extra: str = ""
    """The extra that learning needs, e.g. ``"torch"``; empty where the package alone will do."""
    control: bool = False
    """Not a method to use but a level to compare with."""
    space: Mapping[str, str] = field(default_factory=dict)
    """What ``modalhash tune`` searches: parameter to values, e.g. ``"log:1e-4:10"``. A class outside the package has
    an attribute ``search_space`` instead."""

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
            codes="discrete",
            kernel="anchors, or none",
            growth="n",
            best_at="new items of IAPR TC-12, after RLH; the method of the paper that is reproduced here",
            space={
                "ridge": "log:1e-4:10",
                "quantization": "log:1e-3:10",
                "n_anchors": "logint:200:3000",
                "function_iter": "int:2:15",
            },
        ),
        Method(
            name="rlh",
            path="modalhash.methods.rlh:RLH",
            title="Relevance-Likelihood Hashing",
            year=2026,
            citation="modalhash: Relevance-Likelihood Hashing, a method of this project. Its step 2 is that of AMSH",
            supervised=True,
            pairing="none",
            modalities="1+",
            equations="ours",
            codes="relaxed",
            kernel="anchors, or none",
            growth="n",
            best_at="new items wherever there are labels: first on average on OpenMoji, Mfeat and IAPR TC-12, level "
            "with the first on Wiki",
            space={
                "ridge": "log:1e-4:1",
                "posterior_ridge": "log:1e-4:1",
                "sharpness": "log:1:16",
                "graded": "linear:0:0.6",
                "n_anchors": "logint:200:3000",
            },
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
            codes="discrete",
            kernel="anchors",
            growth="n",
            best_at="first on no data set; among the shortest fits",
            space={"label_ridge": "log:1e-3:10", "sigma": "linear:0.2:1.5", "n_anchors": "logint:100:1500"},
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
            codes="discrete",
            kernel="anchors",
            growth="n",
            best_at="new items after training on pairs: with TECH first of the methods that need them on IAPR TC-12",
            space={
                "feature_weight": "log:1e-3:1",
                "label_weight": "log:0.05:10",
                "quantization": "log:1e-4:1",
                "ridge": "log:1e-4:1",
            },
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
            codes="discrete",
            kernel="none, or anchors",
            growth="n",
            best_at="first on no data set; a fit on Wiki takes a tenth of a second",
            space={"feature_weight": "log:1e-7:1e-2", "label_ridge": "log:1e-2:100", "ridge": "log:1e-4:10"},
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
            codes="discrete",
            kernel="anchors",
            growth="n",
            best_at="new items of Wiki, by little",
            space={
                "label_weight": "log:1:1e4",
                "regression": "log:10:1e5",
                "reconstruction": "linear:0.1:0.9",
                "ridge": "log:0.05:100",
            },
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
            codes="relaxed",
            kernel="none",
            growth="n",
            best_at="pairs without labels: the shortest fits on Wiki",
            space={"coupling": "log:1:1e4", "ridge": "log:1e-4:1", "balance": "linear:0.1:0.9"},
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
            codes="relaxed",
            kernel="none",
            growth="n² once, for neighbours",
            best_at="first on no data set",
            space={"orthogonality": "log:1e-6:0.1", "smoothness": "log:1e-5:1", "balance": "linear:0.1:0.9"},
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
            codes="discrete",
            kernel="none",
            growth="n",
            best_at="pairs without labels: first of its kind on new items of IAPR TC-12",
            space={
                "fit_weight": "log:1:1e4",
                "n_anchors": "int:20:200",
                "n_neighbors": "int:3:20",
                "ridge": "log:1e-8:1e-2",
            },
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
            codes="discrete",
            kernel="anchors, or none",
            growth="n",
            best_at="pairs without labels: first of its kind on new items of OpenMoji, Mfeat and Wiki",
            space={"quantization": "log:1e-2:100", "ridge": "log:1e-4:10", "weight": "linear:0.1:0.9"},
        ),
        Method(
            name="seph",
            path="modalhash.methods.seph:SePH",
            title="Semantics-Preserving Hashing",
            year=2015,
            citation="Z. Lin, G. Ding, M. Hu, J. Wang. Semantics-Preserving Hashing for Cross-View Retrieval. CVPR, "
            "2015; and Z. Lin, G. Ding, J. Han, J. Wang. Cross-View Retrieval via Probability-Based "
            "Semantics-Preserving Hashing. IEEE Transactions on Cybernetics 47(12), 2017",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="authors' code",
            codes="relaxed",
            kernel="anchors",
            growth="n² up to 5,000 pairs, n beyond",
            best_at="first on no data set; new items within .03 of BATCH, by a likelihood instead of a regression",
            space={"penalty": "log:1e-4:1", "quantization": "log:1e-4:1"},
        ),
        Method(
            name="sdmch",
            path="modalhash.methods.sdmch:SDMCH",
            title="Supervised Discrete Manifold-embedded Cross-modal Hashing",
            year=2018,
            citation="X. Luo, X.-Y. Yin, L. Nie, X. Song, Y. Wang, X.-S. Xu. SDMCH: Supervised Discrete "
            "Manifold-Embedded Cross-Modal Hashing. IJCAI, 2018",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="re-implementation: reconstructed from the paper's first page and a note about it",
            codes="discrete",
            kernel="anchors",
            growth="n² once, for neighbours",
            best_at="first on no data set",
            space={
                "label_weight": "log:1:1e4",
                "function_weight": "log:1e-3:10",
                "manifold": "log:1e-2:10",
                "ridge": "log:1e-4:10",
            },
        ),
        Method(
            name="tech",
            path="modalhash.methods.tech:TECH",
            title="Two-step Cross-modal Hashing",
            year=2019,
            citation="Z.-D. Chen, X. Luo, Y. Wang, L. Nie, H.-Q. Li, X.-S. Xu. A Two-Step Cross-Modal Hashing by "
            "Exploiting Label Correlations and Preserving Similarity in Both Steps. ACM Multimedia, 2019. "
            "doi:10.1145/3343031.3350862",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="re-implementation: reconstructed from the paper's abstract, FCMH and ALECH",
            codes="discrete",
            kernel="anchors",
            growth="n",
            best_at="new items after training on pairs: first of the methods that need them on OpenMoji, and with "
            "SCRATCH on Wiki",
            space={
                "correlation": "log:1e-5:0.1",
                "similarity": "log:1e-3:10",
                "prototype_ridge": "log:1e-3:10",
                "ridge": "log:1e-4:1",
            },
        ),
        Method(
            name="scm",
            path="modalhash.methods.scm:SCM",
            title="Semantic Correlation Maximization",
            year=2014,
            citation="D. Zhang, W.-J. Li. Large-Scale Supervised Multimodal Hashing with Semantic Correlation "
            "Maximization. AAAI, 2014",
            supervised=True,
            pairing="optional",
            modalities="2",
            equations="authors' code",
            codes="relaxed",
            kernel="none",
            growth="n",
            best_at="the shortest fits where labels are many and a linear map has to do; mAP far below",
            space={"ridge": "log:1e-8:100"},
        ),
        Method(
            name="alech",
            path="modalhash.methods.alech:ALECH",
            title="Adaptive Label correlation based asymmetric Cross-modal Hashing",
            year=2023,
            citation="H. Li, C. Zhang, X. Jia, Y. Gao, C. Chen. Adaptive Label Correlation Based Asymmetric Discrete "
            "Hashing for Cross-Modal Retrieval. IEEE Transactions on Knowledge and Data Engineering 35(2), 2023. "
            "doi:10.1109/TKDE.2021.3102119",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="authors' code",
            codes="discrete",
            kernel="anchors",
            growth="n",
            best_at="Mfeat after training on pairs: hashed codes above all others, new items level with RLH",
            space={"quantization": "log:1e-5:0.1", "similarity": "log:1e-6:0.01", "regularization": "log:1e-6:0.01"},
        ),
        Method(
            name="wash",
            path="modalhash.methods.wash:WASH",
            title="Weakly-supervised enhanced Semantic-aware Hashing",
            year=2023,
            citation="C. Zhang, H. Li, Y. Gao, C. Chen. Weakly-Supervised Enhanced Semantic-Aware Hashing for "
            "Cross-Modal Retrieval. IEEE Transactions on Knowledge and Data Engineering 35(6), 2023",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="authors' code",
            codes="discrete",
            kernel="anchors",
            growth="n",
            best_at="wrong labels: learned codes of Wiki, OpenMoji and Mfeat, new items of OpenMoji",
            space={
                "quantization": "log:1e-5:0.1",
                "prediction": "log:1e-3:10",
                "noise": "log:1e-4:0.1",
                "ridge": "log:1e-5:0.1",
            },
        ),
        Method(
            name="fcmh",
            path="modalhash.methods.fcmh:FCMH",
            title="Fast Cross-Modal Hashing with global and local similarity embedding",
            year=2021,
            citation="Y. Wang, Z.-D. Chen, X. Luo, R. Li, X.-S. Xu. Fast Cross-Modal Hashing With Global and Local "
            "Similarity Embedding. IEEE Transactions on Cybernetics, 2021. doi:10.1109/TCYB.2021.3059886",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="authors' code",
            codes="discrete",
            kernel="none",
            growth="n",
            best_at="learned codes of IAPR TC-12, second to RLH; weak where features are few, for want of a kernel",
            space={
                "global_weight": "log:1:1e4",
                "local_weight": "log:0.1:1e3",
                "regularization": "log:1e-3:10",
                "ridge": "log:1e-2:100",
            },
        ),
        Method(
            name="fddh",
            path="modalhash.methods.fddh:FDDH",
            title="Fast Discriminative Discrete Hashing",
            year=2021,
            citation="X. Liu, X. Wang, Y.-M. Cheung. FDDH: Fast Discriminative Discrete Hashing for Large-Scale "
            "Cross-Modal Retrieval. IEEE Transactions on Neural Networks and Learning Systems, 2021. arXiv:2105.07128",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="authors' code",
            codes="discrete",
            kernel="anchors",
            growth="n",
            best_at="the shortest fits of its quality; hashed codes of the training items on Wiki, after RLH",
            space={"feature_weight": "log:1e-5:0.1", "label_ridge": "log:100:1e6", "ridge": "log:1e-6:0.01"},
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
            codes="discrete",
            kernel="anchors",
            growth="n",
            best_at="hashed codes of the training items themselves, on Wiki above all",
            space={
                "bandwidth": "log:0.1:2",
                "quantization": "log:1e-3:10",
                "regression": "log:0.1:1e3",
                "ridge": "log:1e-3:100",
            },
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
            codes="discrete",
            kernel="anchors",
            growth="n",
            best_at="new items of OpenMoji and Mfeat, after RLH",
            space={"quantization": "log:1e-3:10", "ridge": "log:1e-5:0.1"},
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
            codes="relaxed",
            kernel="anchors",
            growth="n",
            best_at="learned codes of 64 and 128 bits on IAPR TC-12, text to image",
            space={"penalty": "log:1e-4:1", "n_anchors": "logint:100:1500"},
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
            codes="discrete",
            kernel="anchors",
            growth="n",
            best_at="first on no data set",
            space={"latent": "int:16:256", "n_anchors": "logint:100:1500"},
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
            codes="discrete",
            kernel="anchors",
            growth="n",
            best_at="nothing without pairs: at chance there",
            space={"latent": "int:4:64", "quantization": "log:1e-7:1e-3", "ridge": "log:1e-5:0.1"},
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
            codes="discrete",
            kernel="anchors, or none",
            growth="n",
            best_at="nothing without pairs: at chance there",
            space={
                "pairing": "log:0.1:1e3",
                "quantization": "log:1e-2:100",
                "reconstruction": "log:1e-2:100",
                "ridge": "log:1e-2:100",
            },
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
            codes="relaxed",
            kernel="anchors, or none",
            growth="n",
            best_at="first on no data set",
            space={
                "coupling": "log:1:1e4",
                "feature_weight": "linear:0.1:0.9",
                "graph_weight": "log:100:1e6",
                "ridge": "log:1e-4:1",
            },
        ),
        Method(
            name="ucch",
            path="modalhash.methods.ucch:UCCH",
            title="Unsupervised Contrastive Cross-modal Hashing",
            year=2023,
            citation="P. Hu, H. Zhu, J. Lin, D. Peng, Y.-P. Zhao, X. Peng. Unsupervised Contrastive Cross-Modal "
            "Hashing. IEEE TPAMI 45(3), 2023. doi:10.1109/TPAMI.2022.3177356",
            supervised=False,
            pairing="needed",
            modalities="2",
            equations="authors' code, on features, with smaller networks",
            codes="relaxed",
            kernel="none",
            growth="n",
            extra="torch",
            space={
                "learning_rate": "log:1e-5:1e-2",
                "contrast_weight": "linear:0.1:0.9",
                "margin": "linear:0.05:0.5",
                "temperature": "linear:0.1:1",
            },
        ),
        Method(
            name="dcmh",
            path="modalhash.methods.dcmh:DCMH",
            title="Deep Cross-Modal Hashing, on frozen features",
            year=2017,
            citation="Q.-Y. Jiang, W.-J. Li. Deep Cross-Modal Hashing. CVPR, 2017",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="authors' code; networks on frozen features, centred outputs and Adam are ours",
            codes="relaxed",
            kernel="none",
            growth="n²",
            best_at="first on no data set; on new items of IAPR TC-12 behind AMSH, which takes a fifth of the time",
            extra="torch",
            space={"learning_rate": "log:1e-5:1e-2", "quantization": "log:1e-2:100", "balance_weight": "log:1e-2:100"},
        ),
        Method(
            name="prdh",
            path="modalhash.methods.prdh:PRDH",
            title="Pairwise Relationship guided Deep Hashing, on frozen features",
            year=2017,
            citation="E. Yang, C. Deng, W. Liu, X. Liu, D. Tao, X. Gao. Pairwise Relationship Guided Deep Hashing for "
            "Cross-Modal Retrieval. AAAI, 2017",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="re-implementation: from a note with the paper's equations; weights of the terms are ours",
            codes="relaxed",
            kernel="none",
            growth="n²",
            best_at="first on no data set; on new items of IAPR TC-12 behind AMSH",
            extra="torch",
            space={"learning_rate": "log:1e-5:1e-2", "quantization": "log:1e-2:100", "decorrelation": "log:1e-5:0.1"},
        ),
        Method(
            name="aadah",
            path="modalhash.methods.aadah:AADAH",
            title="Attention-Aware Deep Adversarial Hashing, on frozen features",
            year=2018,
            citation="X. Zhang, H. Lai, J. Feng. Attention-Aware Deep Adversarial Hashing for Cross-Modal Retrieval. "
            "ECCV, 2018. arXiv:1711.09347",
            supervised=True,
            pairing="needed",
            modalities="2",
            equations="re-implementation: from a note with the paper's objective; sizes, margin and schedule are ours",
            codes="relaxed",
            kernel="none",
            growth="n",
            best_at="new items of IAPR TC-12, photo to text with histograms: ahead of AMSH, behind RLH",
            extra="torch",
            space={"learning_rate": "log:1e-5:1e-2", "margin": "linear:0.05:0.5"},
        ),
        Method(
            name="itq",
            path="modalhash.methods.itq:ITQ",
            title="Iterative Quantization",
            year=2011,
            citation="Y. Gong, S. Lazebnik. Iterative Quantization: A Procrustean Approach to Learning Binary Codes. "
            "CVPR 2011",
            supervised=False,
            pairing="none",
            modalities="1+",
            equations="paper",
            codes="relaxed",
            kernel="none",
            growth="n",
            best_at="items without labels: one modality, or several in one space (docs/without-labels.md)",
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
            codes="random",
            kernel="none",
            growth="n",
            best_at="telling what is no better than chance",
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
            codes="relaxed",
            kernel="none",
            growth="n",
            best_at="telling what labels add to pairs",
            control=True,
            space={"regularization": "log:1e-4:1", "power": "linear:0:2"},
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
            codes="discrete",
            kernel="none",
            growth="n",
            best_at="telling how far codes of a length can go",
            control=True,
            space={"ridge": "log:1e-4:1"},
        ),
    ]
}


def info(name: str) -> Method:
    """Return the row of a method, named as for :func:`get`; one outside the package is imported to describe it."""
    if own := METHODS.get(name.lower()):
        return own
    path = _path_outside(name)
    return _describe(name, path, _import_method(name, path))


def get(name: str) -> type[CrossModalHasher]:
    """Return the class of a method.

    Parameters
    ----------
    name : str
        One of :data:`METHODS`; the name under which an installed package registers a method, see :func:`installed`;
        or ``"module:Class"``, which is imported.

    Examples
    --------
    >>> get("amsh").__name__
    'AMSH'
    >>> get("modalhash.methods.amsh:AMSH").__name__
    'AMSH'
    >>> get("batch")(n_bits=32)
    BATCH(n_bits=32)
    """
    own = METHODS.get(name.lower())
    return _import_method(name, own.path if own else _path_outside(name))


method = get
"""What ``modalhash.method`` is: ``modalhash.method("batch")(n_bits=32)``."""


def name_of(cls: type) -> str:
    """Return the name under which :func:`get` finds a class: what a saved model remembers of its method.

    Examples
    --------
    >>> name_of(get("amsh"))
    'amsh'
    """
    path = f"{cls.__module__}:{cls.__qualname__}"
    for method in METHODS.values():
        module, _, name = method.path.partition(":")
        if name == cls.__qualname__ and f"{cls.__module__}.".startswith(f"{module}."):  # a module, or inside a package
            return method.name
    _check_method(path, cls)
    for name, registered in installed().items():
        if registered == path or (_same_package(registered, path) and _find(registered) is cls):
            return name
    if _find(path) is not cls:
        raise ValueError(
            f"{path} cannot be imported by that name, so a model saved under it could not be loaded; "
            "define the class at the top level of a module"
        )
    return path


def installed() -> dict[str, str]:
    """Return the methods that installed packages register: name to ``module:Class``; nothing is imported.

    A package registers a method by an entry point of the group ``modalhash.methods``. A name that is taken, first of
    all by modalhash, is left out with a warning; the method can still be had by its ``module:Class``.
    """
    from importlib.metadata import entry_points

    taken = {name: method.path for name, method in METHODS.items()}
    paths: dict[str, str] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        path = entry.value.partition("[")[0].strip()
        if entry.name.lower() not in taken:
            paths[entry.name] = taken[entry.name.lower()] = path
        elif taken[entry.name.lower()] != path:
            package = entry.dist.name if entry.dist else "a package"
            warnings.warn(
                f"the method {entry.name!r} of {package} is left out: the name means {taken[entry.name.lower()]}. "
                f"Use it as {path}",
                UserWarning,
                stacklevel=2,
            )
    return paths


def outside() -> list[Method]:
    """Return the rows of the methods that installed packages register; a broken one is left out with a warning."""
    rows = []
    for name, path in installed().items():
        try:
            rows.append(_describe(name, path, _import_method(name, path)))
        except Exception as error:  # code of others: whatever it raises must not hide the other methods
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"the method {name!r} ({path}) is left out: {why}", UserWarning, stacklevel=2)
    return rows


def _path_outside(name: str) -> str:
    if ":" in name:
        return name
    paths = installed()
    for known, path in paths.items():
        if known.lower() == name.lower():
            return path
    raise ValueError(
        f"unknown method {name!r}; known: {', '.join([*METHODS, *paths])}. One of your own is given as 'module:Class'"
    )


def _import_method(name: str, path: str) -> type[CrossModalHasher]:
    """Import the class at ``module:Class``, or say why that is no method."""
    return _check_method(name, import_class(path, f"method {name!r}"))


def _find(path: str) -> Any:
    """Return what ``module:Class`` names in the modules that are loaded, or None."""
    module, _, attribute = path.partition(":")
    value: Any = sys.modules.get(module)
    for part in attribute.split("."):
        value = getattr(value, part, None)
    return value


def _same_package(path: str, other: str) -> bool:
    return path.partition(":")[0].partition(".")[0] == other.partition(":")[0].partition(".")[0]


def _check_method(name: str, cls: Any) -> type[CrossModalHasher]:
    lacking = [part for part in INTERFACE if not hasattr(cls, part)]
    lacking += sorted(getattr(cls, "__abstractmethods__", ()))
    if lacking:
        raise TypeError(
            f"method {name!r}: the class lacks {', '.join(lacking)}; derive it from modalhash.methods.CrossModalHasher"
        )
    return cls


def _describe(name: str, path: str, cls: type[CrossModalHasher]) -> Method:
    """Return the row of a method outside the package, from what its class says of itself."""
    title = (cls.__doc__ or cls.__name__).strip().partition("\n")[0]
    most = cls.max_modalities
    least = 2 if cls.needs_pairs else 1
    return Method(
        name=name,
        path=path,
        title=title,
        year=None,
        citation=title,
        supervised=cls.supervised,
        pairing="needed" if cls.needs_pairs else "optional",  # a class cannot say that it ignores them
        modalities=f"{least}+" if most is None else str(most) if most == 2 else f"{least} to {most}",
        equations=f"outside modalhash: {path}",
        space=dict(getattr(cls, "search_space", {})),
    )
