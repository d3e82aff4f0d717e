//! Plans: immutable documents, checked against the version they order before they are kept, and what can be looked up in
//! them.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use serde::Deserialize;
use shardd_api::lookup::{self, Found, LookupError, Step};
use shardd_api::schema;
use shardd_plan::{Plan, PlanDocument};
use shardd_store::catalog::PlanInfo;
use shardfmt::{ManifestFile, PlanId, VersionId};
use utoipa::IntoParams;

use super::access::Datasets;
use super::pages::{self, Paged};
use super::problem::Refusal;
use super::range::{Wanted, wanted};
use super::recall::{WithStaleness, aged, or_recalled, told};
use super::{Answer, LOOKUPS, PathParam, State, ValidJson, ValidQuery, json, place, within};

/// The most positions that one lookup answers.
const MAX_POSITIONS: u64 = 10_000;

/// What `GET /v1/plans` asks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichPlans {
    /// Elements of a page, 1000 by default.
    #[param(minimum = 1, maximum = 10_000, nullable = false)]
    limit: Option<usize>,
    /// The start of this page: the token in the `link` header of the page before. Only the server reads it.
    #[param(pattern = "^([0-9a-f]{2})+$", nullable = false)]
    page: Option<String>,
    /// Only those of this version.
    #[param(value_type = Option<schema::Digest>, nullable = false)]
    version: Option<VersionId>,
}

/// All plans, the oldest first, or those of a version
#[utoipa::path(get, path = "/v1/plans", tag = "plans", operation_id = "list_plans", params(WhichPlans),
    responses((status = 200, description = "A page of the list", body = Vec<PlanInfo>), (status = 422)))]
pub(super) async fn list(
    state: State,
    seen: Datasets,
    uri: Uri,
    ValidQuery(WhichPlans { limit, page, version }): ValidQuery<WhichPlans>,
) -> Answer {
    let paged = Paged::of(limit, page);
    let (mut all, age) = or_recalled(&state, |catalog| async move { catalog.plans().await }).await?;
    all.retain(|plan| seen.0.holds(&plan.dataset) && version.is_none_or(|version| plan.version == version));
    let key = |plan: &WithStaleness<PlanInfo>| format!("{:020}{}", plan.what.created, plan.what.id);
    aged(pages::page(&uri, &paged, told(all, age), key), age)
}

/// Store a plan for a version that has been committed
#[utoipa::path(post, path = "/v1/plans", tag = "plans", operation_id = "create_plan",
    request_body = schema::PlanDocument,
    responses((status = 201, description = "The plan", body = PlanInfo), (status = 404), (status = 422)))]
pub(super) async fn create(
    state: State,
    seen: Datasets,
    ValidJson(document): ValidJson<PlanDocument>,
) -> Answer {
    if !seen.0.is_all() {
        seen.check(&state.api.catalog.dataset_of(document.version).await?)?;
    }
    let info = state.api.catalog.put_plan(&document).await?;
    Ok((StatusCode::CREATED, json(&info)?).into_response())
}

/// A plan's document
#[utoipa::path(get, path = "/v1/plans/{id}", tag = "plans", operation_id = "get_plan",
    params(("id" = schema::Digest, Path, description = "The plan")),
    responses((status = 200, description = "Its canonical form", body = schema::PlanDocument),
        (status = 304, description = "Not modified"), (status = 404)))]
pub(super) async fn show(state: State, headers: HeaderMap, PathParam(id): PathParam<PlanId>) -> Answer {
    let bytes = state.api.catalog.plan(id).await?.to_bytes();
    let etag = format!("\"{id}\"");
    let has_it = wanted(&headers, &etag, bytes.len() as u64) == Wanted::Nothing;
    let known = [(ETAG, etag), (CACHE_CONTROL, "public, max-age=31536000, immutable".to_owned())];
    if has_it {
        return Ok((StatusCode::NOT_MODIFIED, known).into_response());
    }
    Ok((known, [(CONTENT_TYPE, "application/json")], bytes).into_response())
}

/// Take a plan off the list
#[utoipa::path(delete, path = "/v1/plans/{id}", tag = "plans", operation_id = "remove_plan",
    params(("id" = schema::Digest, Path, description = "The plan")),
    responses((status = 204, description = "The plan is off the list"), (status = 404), (status = 409)))]
pub(super) async fn remove(state: State, PathParam(id): PathParam<PlanId>) -> Answer {
    state.api.catalog.remove_plan(id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Which sample is asked for, and when.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Where {
    /// Number of the sample in the order of the dataset, from 0.
    sample: u64,
    /// The epoch, from 0.
    #[serde(default)]
    #[param(default = 0, required = false)]
    epoch: u32,
}

/// Which positions are asked for, and whose share of them.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct At {
    /// The epoch, from 0.
    #[serde(default)]
    #[param(default = 0, required = false)]
    epoch: u32,
    /// The first position.
    #[serde(default)]
    #[param(default = 0, required = false)]
    position: u64,
    /// How many positions.
    #[serde(default = "one")]
    #[param(minimum = 1, maximum = 10_000, default = 1, required = false)]
    global_batch_size: u64,
    /// Only what this rank reads.
    #[param(nullable = false)]
    rank: Option<u32>,
    /// How many ranks there are.
    #[serde(default = "one")]
    #[param(minimum = 1, default = 1, required = false)]
    world: u32,
    /// How many virtual ranks there are; by default as many as the plan has for steps of global_batch_size.
    #[param(minimum = 1, nullable = false)]
    virtual_ranks: Option<u32>,
}

fn one<T: From<u8>>() -> T {
    1.into()
}

/// Where a sample is in an epoch, and when it is read
#[utoipa::path(get, path = "/v1/plans/{id}/where", tag = "plans", operation_id = "where",
    params(("id" = schema::Digest, Path, description = "The plan"), Where),
    responses((status = 200, description = "The sample", body = Found), (status = 404), (status = 422)))]
pub(super) async fn find(
    state: State,
    PathParam(id): PathParam<PlanId>,
    ValidQuery(asked): ValidQuery<Where>,
) -> Answer {
    let Where { sample, epoch } = asked;
    let look = move |plan: &Plan, manifest: &ManifestFile| lookup::find(plan, manifest, epoch, sample);
    json(&looked_up(&state, id, look).await?)
}

/// The samples at positions of an epoch, or those of one rank in a step
#[utoipa::path(get, path = "/v1/plans/{id}/at", tag = "plans", operation_id = "at",
    params(("id" = schema::Digest, Path, description = "The plan"), At),
    responses((status = 200, description = "The samples, by position", body = Vec<Found>),
        (status = 404), (status = 422)))]
pub(super) async fn at(
    state: State,
    PathParam(id): PathParam<PlanId>,
    ValidQuery(asked): ValidQuery<At>,
) -> Answer {
    let At { epoch, position, global_batch_size, rank, world, virtual_ranks } = asked;
    let global_batch_size = within("global_batch_size", global_batch_size, MAX_POSITIONS)?;
    let step = Step { epoch, position, global_batch_size, rank, world, virtual_ranks };
    let look = move |plan: &Plan, manifest: &ManifestFile| lookup::at(plan, manifest, &step);
    json(&looked_up(&state, id, look).await?)
}

/// Asks a plan something, where that may take a while.
async fn looked_up<T: Send + 'static>(
    state: &State,
    id: PlanId,
    look: impl FnOnce(&Plan, &ManifestFile) -> Result<T, LookupError> + Send + 'static,
) -> Result<T, Refusal> {
    let one_of_few = place(&state.lookups, "lookups", LOOKUPS)?;
    let document = state.api.catalog.plan(id).await?;
    let version = document.version;
    let asked = move |manifest: ManifestFile| {
        let _one_of_few = one_of_few;
        let rows = manifest.shard_rows()?;
        Ok(Plan::new(document, &rows).map_err(LookupError::from).and_then(|plan| look(&plan, &manifest)))
    };
    Ok(state.api.catalog.origin().ask_manifest(version, asked).await??)
}
