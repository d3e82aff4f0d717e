//! Names of spans and attributes as the [semantic conventions](https://opentelemetry.io/docs/specs/semconv/) have them. In log lines
//! the same spans have shorter names.

use opentelemetry::trace::SpanKind;
use opentelemetry::{Key, KeyValue};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::resource::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use std::time::Duration;

/// Sends spans under the names of the conventions.
#[derive(Debug)]
pub(crate) struct Conventional<E>(pub(crate) E);

impl<E: SpanExporter> SpanExporter for Conventional<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.export(batch.into_iter().map(conventional).collect()).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

/// A span of this project, by the name that `tracing` knows: which side of a request it is, if it is one.
fn kind(name: &str) -> SpanKind {
    match name {
        "request" | "answer_peer" => SpanKind::Server,
        "locate" | "ask_peer" | "read_store" => SpanKind::Client,
        _ => SpanKind::Internal,
    }
}

fn conventional(mut span: SpanData) -> SpanData {
    span.span_kind = kind(&span.name);
    if span.name == "request" {
        let of = |key: &str| span.attributes.iter().find(|own| own.key.as_str() == key);
        if let (Some(method), Some(route)) = (of("method"), of("route")) {
            span.name = format!("{} {}", method.value, route.value).into();
        }
    }
    for attribute in &mut span.attributes {
        attribute.key = key(attribute.key.as_str());
    }
    span
}

fn key(own: &str) -> Key {
    match own {
        "method" => Key::from_static_str("http.request.method"),
        "route" => Key::from_static_str("http.route"),
        // Of a convention already, or of the bridge from `tracing`.
        own if own.contains('.') => Key::new(own.to_owned()),
        own => Key::new(format!("shardd.{own}")),
    }
}

/// The facts about the process.
pub(crate) fn resource(name: &'static str, version: &'static str, instance: Option<String>) -> Resource {
    use opentelemetry_sdk::resource::EnvResourceDetector;

    let own = [("service.name", Some(name.to_owned())), ("service.version", Some(version.to_owned()))];
    let own = own.into_iter().chain([("service.instance.id", instance)]);
    let own = own.filter_map(|(key, value)| Some(KeyValue::new(key, value?)));
    // Later ones win: OTEL_RESOURCE_ATTRIBUTES, and then OTEL_SERVICE_NAME.
    let resource = Resource::builder_empty().with_attributes(own);
    let resource = resource.with_detector(Box::new(EnvResourceDetector::new()));
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.trim().is_empty() => resource.with_service_name(name).build(),
        _ => resource.build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_our_own_have_our_name_before_them() {
        for (own, conventional) in [
            ("method", "http.request.method"),
            ("route", "http.route"),
            ("epoch", "shardd.epoch"),
            ("http.response.status_code", "http.response.status_code"),
        ] {
            assert_eq!(key(own).as_str(), conventional);
        }
    }

    #[test]
    fn both_sides_of_a_request_are_told_apart() {
        assert_eq!((kind("ask_peer"), kind("answer_peer")), (SpanKind::Client, SpanKind::Server));
        assert_eq!((kind("request"), kind("gather")), (SpanKind::Server, SpanKind::Internal));
    }
}
