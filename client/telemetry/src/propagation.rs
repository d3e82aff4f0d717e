//! Where a trace goes from one process to the next.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The present span for the header `traceparent`, if it is part of a trace.
pub fn traceparent() -> Option<String> {
    let context = Span::current().context();
    let span = context.span().span_context().clone();
    span.is_valid().then(|| {
        let flags = span.trace_flags() & TraceFlags::SAMPLED;
        format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), flags.to_u8())
    })
}

/// The trace that the present span is part of, if it is recorded.
pub fn trace_id() -> Option<String> {
    let context = Span::current().context();
    let span = context.span().span_context().clone();
    (span.is_valid() && span.is_sampled()).then(|| span.trace_id().to_string())
}

/// Makes `span` a child of the span that a process before named. A name of another form has no effect.
pub fn continue_trace(span: &Span, traceparent: &str) {
    if let Some(parent) = parse(traceparent) {
        // It fails where no layer takes spans, and then there is nothing to continue.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
}

/// Notes the HTTP status that a request was answered with.
pub fn record_status(span: &Span, status: u16) {
    span.set_attribute("http.response.status_code", i64::from(status));
    if status >= 500 {
        span.set_status(Status::error(status.to_string()));
    }
}

/// `version-trace-parent-flags`, in small hexadecimal digits; a later version may have more behind them.
fn parse(text: &str) -> Option<SpanContext> {
    let mut parts = text.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    if !(is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2)) {
        return None;
    }
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_traceparent_of_the_recommendation_is_read() {
        let context = parse(&format!("00-{TRACE}-{SPAN}-01")).expect("the example of the recommendation");
        assert_eq!(context.trace_id().to_string(), TRACE);
        assert_eq!(context.span_id().to_string(), SPAN);
        assert!(context.is_sampled() && context.is_remote());
        assert!(!parse(&format!("00-{TRACE}-{SPAN}-00")).expect("not sampled").is_sampled());
        assert!(parse(&format!("cc-{TRACE}-{SPAN}-01-later")).is_some(), "a later version");
    }

    #[test]
    fn other_texts_are_no_traceparent() {
        let zeros = "0".repeat(32);
        for bad in [
            "",
            "00",
            TRACE,
            &format!("ff-{TRACE}-{SPAN}-01"),
            &format!("00-{zeros}-{SPAN}-01"),
            &format!("00-{TRACE}-{}-01", &zeros[..16]),
            &format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            &format!("00-{TRACE}-{SPAN}-01-more"),
            &format!("00-{TRACE}-{SPAN}"),
            &format!("00-{TRACE}-{SPAN}-1"),
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
