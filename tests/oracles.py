"""Plain-loop versions of the papers' equations, written from the papers alone, in float64; and measures of trees."""

from itertools import permutations

import numpy as np


def eq1(z, key, negatives, tau):
    """InfoNCE of one query."""
    terms = [np.exp(z @ key / tau)] + [np.exp(z @ n / tau) for n in negatives]
    return -np.log(terms[0] / sum(terms))


def eq2(z, positive, negatives, tau_positive, tau_negatives):
    """ProtoNCE of one query."""
    terms = [np.exp(z @ positive / tau_positive)] + [
        np.exp(z @ c / t) for c, t in zip(negatives, tau_negatives, strict=True)
    ]
    return -np.log(terms[0] / sum(terms))


def eq3_temperature(members, prototype, epsilon):
    return sum(np.linalg.norm(m - prototype) for m in members) / (len(members) * np.log(len(members) + epsilon))


def eq3_similarity(z, prototype, tau):
    return z @ prototype / tau


def eq4(z_j, prototypes, taus, cluster):
    """Probability that a queue entry is kept for a query of this cluster."""
    scores = [eq3_similarity(z_j, c, t) for c, t in zip(prototypes, taus, strict=True)]
    top = max(scores)
    weights = [np.exp(s - top) for s in scores]
    return 1 - weights[cluster] / sum(weights)


def eq7(j, prototypes, upper, upper_taus, parents, cluster):
    """Probability that prototype j is kept for a query of this cluster."""
    return eq4(prototypes[j], upper, upper_taus, parents[cluster])


def eq6(z, keys, queue, keep, tau):
    """`keep[l][b][j]`."""
    total = 0.0
    for b in range(len(z)):
        for mask in keep:
            negatives = [queue[j] for j in range(len(queue)) if mask[b][j]]
            total += eq1(z[b], keys[b], negatives, tau) / len(keep)
    return total / len(z)


def eq9(z, prototypes, taus, clusters, keep):
    """`prototypes[l]`, `clusters[l][b]`, `keep[l][b][i]` or None."""
    total = 0.0
    for b in range(len(z)):
        for level in range(len(prototypes)):
            cluster = clusters[level][b]
            others = [i for i in range(len(prototypes[level])) if i != cluster]
            if keep[level] is not None:
                others = [i for i in others if keep[level][b][i]]
            total += eq2(
                z[b],
                prototypes[level][cluster],
                [prototypes[level][i] for i in others],
                taus[level][cluster],
                [taus[level][i] for i in others],
            ) / len(prototypes)
    return total / len(z)


def negative_selection(left_out, labels, queue_labels, same_image):
    """Precision and recall of false negatives, and the preservation of true ones; `left_out[b][j]`."""
    out = alike_out = alike = other_kept = other = 0
    for b in range(len(labels)):
        for j in range(len(queue_labels)):
            if queue_labels[j] < 0 or j in same_image[b]:
                continue
            out += left_out[b][j]
            if queue_labels[j] == labels[b]:
                alike += 1
                alike_out += left_out[b][j]
            else:
                other += 1
                other_kept += not left_out[b][j]
    return alike_out / out, alike_out / alike, other_kept / other


def lloyd_objective(points, centroids):
    return sum(min(((p - c) ** 2).sum() for c in centroids) for p in points)


# ---- trees against labels: `levels[l][i]` is image i's cluster, the bottom first ----


def dendrogram_purity(levels, labels):
    """Over all pairs of one class: its share in the smallest node that has both; the root has everything."""
    images = range(len(labels))
    shares = []
    for i in images:
        for j in range(i + 1, len(labels)):
            if labels[i] == labels[j]:
                together = [level for level in levels if level[i] == level[j]]
                node = [k for k in images if not together or together[0][k] == together[0][i]]
                shares.append(sum(labels[k] == labels[i] for k in node) / len(node))
    return sum(shares) / len(shares)


def leaf_purity(clusters, labels):
    right = 0
    for cluster in set(clusters):
        members = [label for of, label in zip(clusters, labels, strict=True) if of == cluster]
        right += max(members.count(label) for label in members)
    return right / len(labels)


def matched_accuracy(clusters, labels):
    """Every way to name the clusters by different classes; what has no name is wrong."""
    names = sorted(set(clusters))
    classes = [*sorted(set(labels)), *[None] * len(names)]
    ways = set(permutations(classes, len(names)))
    right = [
        sum(dict(zip(names, way, strict=True))[of] == label for of, label in zip(clusters, labels, strict=True))
        for way in ways
    ]
    return max(right) / len(labels)


# ---- the released code's variants, in words: a left-out negative keeps exp(0), the prototypes of the batch's images
# and the one of the highest number are nobody's negatives, the instance term is summed over levels; a small crop is a
# further query with the masks of its image's, or without any where its selection is off, and draws its prototypes ----


def released_instance(z, keys, queue, keep, tau):
    total = 0.0
    for mask in keep:
        for b in range(len(z)):
            denominator = np.exp(z[b] @ keys[b] / tau)
            for j in range(len(queue)):
                denominator += np.exp(z[b] @ queue[j] / tau) if mask[b][j] else 1.0
            total -= np.log(np.exp(z[b] @ keys[b] / tau) / denominator) / len(z)
    return total


def released_prototype(z, prototypes, taus, clusters, keep, highest):
    total = 0.0
    for level in range(len(prototypes)):
        used = set(clusters[level])
        for b in range(len(z)):
            cluster = clusters[level][b]
            logits = [z[b] @ prototypes[level][cluster] / taus[level][cluster]]
            for i in range(highest[level]):
                if i in used:
                    continue
                kept = keep[level] is None or keep[level][b][i]
                logits.append(z[b] @ prototypes[level][i] / taus[level][i] if kept else 0.0)
            total += (np.logaddexp.reduce(logits) - logits[0]) / len(z) / len(prototypes)
    return total


def released_local(crops, keys, queue, keep, tau, prototypes, taus, clusters, proto_keep, highest):
    """`keep`: the queries' masks, or one that keeps everything; `proto_keep[crop]`: as in the query's term."""
    total = 0.0
    for crop, keep_prototypes in zip(crops, proto_keep, strict=True):
        total += released_instance(crop, keys, queue, keep, tau)
        total += released_prototype(crop, prototypes, taus, clusters, keep_prototypes, highest)
    return total


def rankme(features, epsilon=1e-7):
    singular = np.linalg.svd(features, compute_uv=False)
    shares = [value / sum(singular) + epsilon for value in singular]
    return np.exp(-sum(share * np.log(share) for share in shares))


def alignment(z1, z2, alpha):
    pairs = [(a / np.linalg.norm(a), b / np.linalg.norm(b)) for a, b in zip(z1, z2, strict=True)]
    return np.mean([np.linalg.norm(a - b) ** alpha for a, b in pairs])


def uniformity(z, t):
    unit = [row / np.linalg.norm(row) for row in z]
    potentials = [np.exp(-t * np.sum((unit[i] - unit[j]) ** 2)) for i in range(len(z)) for j in range(i)]
    return np.log(np.mean(potentials))


def dead_dimensions(features, still):
    scale = np.sqrt(sum(value**2 for row in features for value in row) / features.size)
    return np.mean([np.sqrt(np.mean((column - np.mean(column)) ** 2)) <= still * scale for column in features.T])
