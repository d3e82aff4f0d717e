//! Why no traces can be sent.

use thiserror::Error;

/// Why no traces can be sent.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum TelemetryError {
    /// Only OTLP over HTTP is spoken.
    #[error("{variable} is {protocol}; shardd sends http/protobuf, which collectors take at port 4318")]
    Protocol { variable: String, protocol: String },
    /// The endpoint or a header cannot be used.
    #[error("traces cannot be sent as the OTEL variables ask: {0}")]
    Exporter(String),
}
