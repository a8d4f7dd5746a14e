"""What Prometheus reads at /metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cretta.serve.observe import Observation

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one service, in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, waiting: Callable[[], float]) -> None:
        registry = self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"cretta_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"cretta_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"cretta_{name}_seconds", text, buckets=SECONDS, registry=registry)

        self.requests = counter("requests", "Requests for predictions, by the status of the response.", "code")
        self.images = counter("images", "Images that were predicted.")
        self.batches = counter("batches", "Batches that were predicted.")
        self.dropped = counter("dropped_images", "Images whose client had gone before their batch was formed.")
        self.steps = counter("steps", "Batches by what the model learned from them.", "outcome")
        self.guard_events = counter("guard_events", "What the guard did.", "action")
        self.snapshots = counter("snapshots", "Snapshots, written or failed.", "outcome")
        self.queue_seconds = seconds("queue", "Time from the acceptance of an image until its batch is formed.")
        self.predict_seconds = seconds("predict", "Time from a batch until its answers.")
        self.adapt_seconds = seconds("adapt", "Time from the answers of a batch until the model has learned from it.")
        self.energy = gauge("energy", "Mean energy of the last batch.")
        self.confidence = gauge("confidence_ratio", "Mean confidence of the last batch.")
        self.accuracy = gauge(
            "estimated_accuracy_ratio", "Accuracy of the last batches, estimated without labels.", "estimator"
        )
        self.drift = gauge("drift_score", "How far the energies of the stream are from those of the source.")
        self.model_step = gauge("model_step", "Updates of the model so far.")
        gauge("queue_images", "Images that wait.").set_function(waiting)

    def observe(self, seen: Observation) -> None:
        """Count a batch."""
        self.images.inc(seen.images)
        self.batches.inc()
        self.steps.labels(seen.outcome).inc()
        if seen.guard:
            self.guard_events.labels(seen.guard_action).inc()
        self.predict_seconds.observe(seen.predict_seconds)
        self.adapt_seconds.observe(seen.adapt_seconds)
        self.energy.set(seen.energy)
        self.confidence.set(seen.confidence)
        self.model_step.set(seen.step)
        for name, value in seen.accuracy.items():
            self.accuracy.labels(name).set(value)
        if seen.drift is not None:
            self.drift.set(seen.drift)

    def text(self) -> bytes:
        """Return all metrics in the format that Prometheus reads."""
        return bytes(generate_latest(self.registry))
