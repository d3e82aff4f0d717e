//! Log lines of a program, and with the feature `otlp` its traces.

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::error::TelemetryError;

/// The program that sends traces.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its name: `service.name`.
    pub name: &'static str,
    /// Its release: `service.version`.
    pub version: &'static str,
    /// Which of its processes it is: `service.instance.id`.
    pub instance: Option<String>,
}

/// Sends the last spans when it is dropped.
#[derive(Debug, Default)]
#[must_use = "spans are lost when it is dropped early"]
pub struct Exporting {
    #[cfg(feature = "otlp")]
    traces: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
    #[cfg(feature = "otlp")]
    logs: Option<opentelemetry_sdk::logs::SdkLoggerProvider>,
}

/// Writes log lines by `lines`, and sends spans and log records to the collector of the environment.
///
/// # Errors
/// The variables of OpenTelemetry ask for something that this program cannot do.
#[cfg(not(feature = "otlp"))]
pub fn init<L>(lines: L, service: &Service) -> Result<Exporting, TelemetryError>
where
    L: Layer<Registry> + Send + Sync + 'static,
{
    tracing_subscriber::registry().with(lines).init();
    // A protocol that the other build refuses is asked for in vain, too.
    let is_asked = crate::env::signals(|name| std::env::var(name).ok())
        .map_or(true, |signals| signals.traces || signals.logs);
    if is_asked {
        let name = service.name;
        tracing::warn!(
            "this build of {name} sends nothing to the collector of the OTEL variables: build it with the feature otlp"
        );
    }
    Ok(Exporting::default())
}

/// Writes log lines by `lines`, and sends spans and log records to the collector of the environment.
///
/// # Errors
/// The variables of OpenTelemetry ask for something that this program cannot do.
#[cfg(feature = "otlp")]
pub fn init<L>(lines: L, service: &Service) -> Result<Exporting, TelemetryError>
where
    L: Layer<Registry> + Send + Sync + 'static,
{
    let signals = crate::env::signals(|name| std::env::var(name).ok())?;
    let exporting = Exporting::of(signals, service)?;
    let subscriber = tracing_subscriber::registry().with(lines).with(exporting.spans());
    subscriber.with(exporting.records()).init();
    Ok(exporting)
}

#[cfg(feature = "otlp")]
mod otlp {
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
    use opentelemetry_otlp::{LogExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
    use opentelemetry_sdk::logs::SdkLoggerProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing::level_filters::LevelFilter;
    use tracing::{Level, Metadata, Subscriber};
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::filter_fn;
    use tracing_subscriber::registry::LookupSpan;

    use super::{Exporting, Service};
    use crate::collector::Collector;
    use crate::conventions::{Conventional, resource};
    use crate::env::Signals;
    use crate::error::TelemetryError;

    impl Exporting {
        pub(super) fn of(signals: Signals, service: &Service) -> Result<Self, TelemetryError> {
            let bad =
                |error: opentelemetry_otlp::ExporterBuildError| TelemetryError::Exporter(error.to_string());
            let resource = || resource(service.name, service.version, service.instance.clone());
            let spans = || {
                let exporter = SpanExporter::builder().with_http().with_http_client(Collector::of("spans"));
                let exporter = exporter.with_protocol(Protocol::HttpBinary).build().map_err(bad)?;
                let provider = SdkTracerProvider::builder().with_resource(resource());
                Ok(provider.with_batch_exporter(Conventional(exporter)).build())
            };
            let records = || {
                let exporter =
                    LogExporter::builder().with_http().with_http_client(Collector::of("log records"));
                let exporter = exporter.with_protocol(Protocol::HttpBinary).build().map_err(bad)?;
                let provider = SdkLoggerProvider::builder().with_resource(resource());
                Ok(provider.with_batch_exporter(exporter).build())
            };
            Ok(Self {
                traces: signals.traces.then(spans).transpose()?,
                logs: signals.logs.then(records).transpose()?,
            })
        }

        /// What takes spans.
        pub(super) fn spans<S>(&self) -> Option<impl Layer<S> + use<S>>
        where
            S: Subscriber + for<'a> LookupSpan<'a>,
        {
            // Below DEBUG nothing is of use here, and a span of each packet would be.
            let wanted = |metadata: &Metadata<'_>| {
                is_own(metadata) && (metadata.is_span() || *metadata.level() <= Level::INFO)
            };
            self.traces.as_ref().map(|provider| {
                let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shardd"));
                let layer = layer.with_location(false).with_threads(false).with_tracked_inactivity(false);
                layer.with_filter(filter_fn(wanted).with_max_level_hint(LevelFilter::DEBUG))
            })
        }

        /// What takes log records.
        pub(super) fn records<S>(&self) -> Option<impl Layer<S> + use<S>>
        where
            S: Subscriber + for<'a> LookupSpan<'a>,
        {
            let wanted = |metadata: &Metadata<'_>| is_own(metadata) && *metadata.level() <= Level::INFO;
            self.logs.as_ref().map(|provider| {
                let layer = OpenTelemetryTracingBridge::new(provider);
                layer.with_filter(filter_fn(wanted).with_max_level_hint(LevelFilter::INFO))
            })
        }
    }

    impl Drop for Exporting {
        fn drop(&mut self) {
            // A collector that fails was logged.
            let _ = self.traces.take().map(|provider| provider.shutdown());
            let _ = self.logs.take().map(|provider| provider.shutdown());
        }
    }

    /// Whether a span or an event is of this project: those of libraries go into log lines alone.
    fn is_own(metadata: &Metadata<'_>) -> bool {
        ["shardd", "shardfmt", "shardtrain"].iter().any(|own| metadata.target().starts_with(own))
    }
}
