//! The signals that the variables of OpenTelemetry ask for. Pure.

use crate::error::TelemetryError;

/// The signals for a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signals {
    pub(crate) traces: bool,
    pub(crate) logs: bool,
}

/// The signals that these variables ask for; none without an endpoint.
pub(crate) fn signals(variable: impl Fn(&str) -> Option<String>) -> Result<Signals, TelemetryError> {
    let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
    if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(Signals { traces: false, logs: false });
    }
    let wants = |signal: &str| {
        let own = set(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"));
        let exporter = set(&format!("OTEL_{signal}_EXPORTER"));
        let is_named = own.or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT")).is_some();
        is_named && exporter.as_deref() != Some("none")
    };
    let signals = Signals { traces: wants("TRACES"), logs: wants("LOGS") };
    for (is_sent, signal) in [(signals.traces, "TRACES"), (signals.logs, "LOGS")] {
        let name = format!("OTEL_EXPORTER_OTLP_{signal}_PROTOCOL");
        let own = set(&name).map(|value| (name, value));
        let of_all = || {
            let name = "OTEL_EXPORTER_OTLP_PROTOCOL".to_owned();
            set(&name).map(|value| (name, value))
        };
        let asked = own.or_else(of_all).filter(|_| is_sent);
        if let Some((variable, protocol)) = asked.filter(|(_, protocol)| protocol != "http/protobuf") {
            return Err(TelemetryError::Protocol { variable, protocol });
        }
    }
    Ok(signals)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Result<Signals, TelemetryError> {
        signals(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    fn sent(set: &[(&str, &str)]) -> (bool, bool) {
        let Signals { traces, logs } = of(set).expect("good variables");
        (traces, logs)
    }

    #[test]
    fn nothing_is_sent_unless_an_endpoint_is_named() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318");
        assert_eq!(sent(&[]), (false, false));
        assert_eq!(sent(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), (false, false));
        assert_eq!(sent(&[endpoint]), (true, true));
        assert_eq!(sent(&[endpoint, ("OTEL_LOGS_EXPORTER", "none")]), (true, false));
        assert_eq!(sent(&[endpoint, ("OTEL_SDK_DISABLED", "true")]), (false, false));
        assert_eq!(sent(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/v1/traces")]), (true, false));
    }

    #[test]
    fn a_protocol_that_is_not_spoken_is_named() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317");
        let error = of(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).expect_err("no gRPC");
        assert!(error.to_string().contains("OTEL_EXPORTER_OTLP_PROTOCOL is grpc"), "{error}");
        let own = ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/json");
        let error = of(&[endpoint, own]).expect_err("no JSON");
        assert!(error.to_string().contains("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL"), "{error}");
        assert_eq!(sent(&[endpoint, own, ("OTEL_LOGS_EXPORTER", "none")]), (true, false));
    }
}
