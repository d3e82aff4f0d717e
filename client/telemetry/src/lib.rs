//! Traces: how a request goes from process to process, for OpenTelemetry.
//!
//! A span is one of `tracing`. [`traceparent`] names the present one for the next process, and [`continue_trace`]
//! takes up that of the process before, in the form of [W3C Trace Context](https://www.w3.org/TR/trace-context/).
//! [`init`] writes log lines, and with the feature `otlp` sends spans and log records to a collector, where the
//! [variables of OpenTelemetry](https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/)
//! name one. Without the feature nothing is sent.

#[cfg(feature = "otlp")]
mod collector;
#[cfg(feature = "otlp")]
mod conventions;
#[cfg(feature = "init")]
mod env;
#[cfg(feature = "init")]
mod error;
#[cfg(feature = "init")]
mod init;
#[cfg(feature = "otlp")]
mod propagation;

#[cfg(feature = "init")]
pub use error::TelemetryError;
#[cfg(feature = "init")]
pub use init::{Exporting, Service, init};
#[cfg(feature = "otlp")]
pub use propagation::{continue_trace, record_status, trace_id, traceparent};

/// The header that names a span to the next process.
pub const TRACEPARENT: &str = "traceparent";

/// The present span for the header `traceparent`, if it is part of a trace.
#[cfg(not(feature = "otlp"))]
pub fn traceparent() -> Option<String> {
    None
}

/// The trace that the present span is part of, if it is recorded.
#[cfg(not(feature = "otlp"))]
pub fn trace_id() -> Option<String> {
    None
}

/// Makes `span` a child of the span that a process before named. A name of another form has no effect.
#[cfg(not(feature = "otlp"))]
pub fn continue_trace(_span: &tracing::Span, _traceparent: &str) {}

/// Notes the HTTP status that a request was answered with.
#[cfg(not(feature = "otlp"))]
pub fn record_status(_span: &tracing::Span, _status: u16) {}
