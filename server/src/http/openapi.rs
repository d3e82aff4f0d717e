//! The description of the API (OpenAPI 3.1), made from the routes themselves. What all operations have in common is written
//! here once: HEAD beside every GET, and for each status of a refusal the problems that come with it.

use std::borrow::Cow;

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, ETAG};
use axum::response::IntoResponse;
use serde_json::Value;
use shardd_api::problem::{MEDIA_TYPE, Problem, TABLE};
use shardd_api::protocol::RunId;
use shardd_api::schema;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::openapi::{OpenApi, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{OpenApi as _, PartialSchema, ToSchema};

use super::{Answer, State};

/// The possible refusals of any operation: the request is no request, it needs another token, it is for
/// another host or from another site's page, there is too much to do, the node has trouble.
const ANYWHERE: [&str; 7] = ["400", "401", "403", "421", "429", "500", "503"];
/// The further refusals of an operation with a body.
const WITH_BODY: [&str; 3] = ["408", "413", "415"];

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "shardd",
        description = "Datasets as content-addressed shards, plans that order them, and the nodes that serve them. Every refusal is a problem document (RFC 9457) whose `type` says what to do; `docs/API.md` lists them. Lists come in pages: the `link` header names the next.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    // Those that only paths name are not found by themselves.
    components(schemas(Problem, schema::DatasetName, schema::DatasetRef, schema::Digest, schema::TagName, RunId)),
    tags(
        (name = "node", description = "This node"),
        (name = "cluster", description = "The nodes together"),
        (name = "datasets", description = "Names, versions, tags"),
        (name = "objects", description = "Immutable bytes under their digests"),
        (name = "plans", description = "Orders of samples, for lookups and reads"),
        (name = "runs", description = "Trainings over a plan"),
        (name = "access", description = "Tokens, certificates and rights"),
    )
)]
struct Frame;

/// Describes bytes that are no text.
pub(super) enum Binary {}

impl PartialSchema for Binary {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)))
            .into()
    }
}

impl ToSchema for Binary {
    fn name() -> Cow<'static, str> {
        "Binary".into()
    }
}

/// The document without its operations.
pub(super) fn frame() -> OpenApi {
    Frame::openapi()
}

/// The document as it is served.
pub(super) fn finish(mut document: OpenApi) -> Bytes {
    for item in document.paths.paths.values_mut() {
        for operation in operations(item) {
            describe_problems(operation);
        }
        item.head = item.get.as_ref().map(head);
    }
    let mut document = serde_json::to_value(&document).expect("a description is plain data");
    bound_numbers(&mut document);
    serde_json::to_vec(&document).expect("it was JSON before").into()
}

/// Says of each integer how long it is: here all are unsigned.
fn bound_numbers(value: &mut Value) {
    match value {
        Value::Object(members) => {
            let (format, most) = match members.get("format").and_then(Value::as_str) {
                Some("int32") => ("uint32", u64::from(u32::MAX)),
                Some("int64") => ("uint64", u64::MAX),
                _ => return members.values_mut().for_each(bound_numbers),
            };
            members.insert("format".to_owned(), format.into());
            members.entry("maximum").or_insert(most.into());
        }
        Value::Array(elements) => elements.iter_mut().for_each(bound_numbers),
        _ => {}
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete].into_iter().flatten()
}

/// HEAD as GET, without the body.
fn head(get: &Operation) -> Operation {
    let mut head = get.clone();
    head.operation_id = get.operation_id.as_ref().map(|id| format!("{id}_head"));
    head.summary = get.summary.as_ref().map(|summary| format!("As GET, without the body: {summary}"));
    for response in head.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            response.content.clear();
        }
    }
    head
}

/// Describes each refusal, and adds those that any operation may give.
fn describe_problems(operation: &mut Operation) {
    let body: &[&str] = if operation.request_body.is_some() { &WITH_BODY } else { &[] };
    let responses = &mut operation.responses.responses;
    for status in ANYWHERE.iter().chain(body) {
        responses.entry((*status).to_owned()).or_insert_with(|| RefOr::T(Response::default()));
    }
    for (status, response) in responses.iter_mut() {
        let RefOr::T(response) = response else { continue };
        let mut described = match TABLE.iter().any(|line| line.status.to_string() == *status) {
            true => problem(status),
            false => std::mem::take(response),
        };
        let id = ObjectBuilder::new().schema_type(Type::String);
        let id = HeaderBuilder::new()
            .schema(id)
            .description(Some("Names the request, in the node's log too"))
            .build();
        described.headers.insert("x-request-id".to_owned(), id);
        *response = described;
    }
}

/// The answer to a request that is refused with `status`.
fn problem(status: &str) -> Response {
    let lines = TABLE.iter().filter(|line| line.status.to_string() == status);
    let meanings: Vec<String> = lines.map(|line| format!("`{}`: {}", line.name, line.meaning)).collect();
    let schema = Ref::from_schema_name(Problem::name());
    ResponseBuilder::new()
        .description(meanings.join("; "))
        .content(MEDIA_TYPE, ContentBuilder::new().schema(Some(schema)).build())
        .build()
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "node", operation_id = "openapi",
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json")))]
pub(super) async fn document(state: State) -> Answer {
    let document = state.document.clone();
    let etag = format!("\"{}\"", shardfmt::Digest::of(&document));
    Ok(([(CONTENT_TYPE, "application/json".to_owned()), (ETAG, etag)], document).into_response())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn served() -> Value {
        let (_, document) = super::super::routes().split_for_parts();
        serde_json::from_slice(&finish(document)).expect("JSON")
    }

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get("$ref") {
                    found.insert(target.clone());
                }
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(elements) => elements.iter().for_each(|element| references(element, found)),
            _ => {}
        }
    }

    #[test]
    fn what_is_referred_to_is_there_and_each_operation_has_a_name_and_a_summary() {
        let document = served();
        assert_eq!(document["openapi"], "3.1.0");
        let mut targets = BTreeSet::new();
        references(&document, &mut targets);
        for target in &targets {
            assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target} is nowhere");
        }
        let mut names = BTreeSet::new();
        for (path, item) in document["paths"].as_object().expect("paths") {
            for (method, operation) in item.as_object().expect("operations") {
                let name = operation["operationId"]
                    .as_str()
                    .unwrap_or_else(|| panic!("{method} {path} has no name"));
                assert!(names.insert(name.to_owned()), "{name} twice");
                assert!(operation["summary"].is_string(), "{method} {path} says nothing");
                assert!(operation["tags"].is_array(), "{method} {path} belongs nowhere");
            }
            assert_eq!(item["get"].is_object(), item["head"].is_object(), "{path}");
        }
    }
}
