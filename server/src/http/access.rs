//! Who asks: looked at before a route sees the request, and the tokens by which that is known.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State as Extract};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use shardd_api::problem::Kind;
use shardd_api::schema;
use shardd_certificates::Host;
use shardfmt::DatasetName;
use utoipa::ToSchema;

use super::pages::{self, Paged};
use super::problem::{Refusal, invalid, not_found};
use super::{Answer, PathParam, Shared, State, ValidJson, ValidQuery, json};
use crate::access::{Denied, Grant, Need, Role, Scope, TokenId, TokenRecord, Tokens};

/// The longest name of a token.
const LONGEST_NAME: usize = 100;

/// Who may ask this node.
pub struct Access {
    /// The tokens there are.
    pub tokens: Arc<Tokens>,
    /// When one has to be shown.
    pub asked: TokensAsked,
    /// Beside localhost and the address at which a request comes in: under what names the node may be asked while it asks for
    /// no token.
    pub hosts: Vec<Host>,
}

/// When a node asks for tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokensAsked {
    /// Whatever the cluster has.
    Always,
    /// As soon as there is one, and no longer than there is one.
    OnceThereIsOne,
    /// Whatever the cluster has.
    Never,
}

impl Access {
    /// Whether a token has to be shown now.
    #[must_use]
    pub fn is_required(&self) -> bool {
        match self.asked {
            TokensAsked::Always => true,
            TokensAsked::OnceThereIsOne => self.tokens.any(),
            TokensAsked::Never => false,
        }
    }
}

/// Lets through who may ask this, and notes on which datasets.
pub(super) async fn allowed(
    Extract(shared): Extract<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    let access = &shared.api.access;
    if access.is_required() {
        match check(access, &request) {
            Ok(None) => {}
            Ok(Some(grant)) => {
                tracing::debug!(token = %grant.id, "let in");
                request.extensions_mut().insert(Datasets(grant.record.datasets.clone()));
                request.extensions_mut().insert(grant);
            }
            Err(refused) => return *refused,
        }
    }
    next.run(request).await
}

fn check(access: &Access, request: &Request) -> Result<Option<Grant>, Box<Response>> {
    let need = Need::of(request.method(), request.uri().path());
    if need == Need::Nothing {
        return Ok(None);
    }
    let shown = bearer(request.headers());
    let grant = match shown.map(|shown| access.tokens.check(shown)) {
        Some(Ok(grant)) => grant,
        None => {
            return Err(unauthorized(
                "Bearer realm=\"shardd\"",
                "this needs a token: `--token-file FILE` or SHARDD_TOKEN_FILE, over HTTP `authorization: Bearer shardd_...`",
            ));
        }
        Some(Err(denied @ Denied::Away)) => {
            return Err(Box::new(Refusal::of(Kind::Unavailable, denied).into_response()));
        }
        Some(Err(denied)) => {
            let challenge = "Bearer realm=\"shardd\", error=\"invalid_token\"";
            return Err(unauthorized(challenge, denied));
        }
    };
    match need.met_by(grant.record.role, &grant.record.datasets) {
        Ok(()) => Ok(Some(grant)),
        Err(lacking) => Err(Box::new(Refusal::of(Kind::Forbidden, lacking).into_response())),
    }
}

/// The token of `authorization: Bearer TOKEN` (RFC 6750, 2.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn unauthorized(challenge: &'static str, detail: impl ToString) -> Box<Response> {
    Box::new(([(WWW_AUTHENTICATE, challenge)], Refusal::of(Kind::Unauthorized, detail)).into_response())
}

/// The datasets that the client may see.
#[derive(Clone, Default)]
pub(super) struct Datasets(pub(super) Scope);

impl Datasets {
    /// Refuses requests about all of them.
    pub(super) fn check_all(&self) -> Result<(), Refusal> {
        match self.0.is_all() {
            true => Ok(()),
            false => Err(Refusal::of(Kind::Forbidden, "the token is for some datasets, this is about all")),
        }
    }

    /// Refuses requests about another dataset.
    pub(super) fn check(&self, dataset: &DatasetName) -> Result<(), Refusal> {
        match self.0.holds(dataset) {
            true => Ok(()),
            false => Err(Refusal::of(Kind::Forbidden, format!("the token is not for dataset {dataset}"))),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Datasets {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get::<Datasets>().cloned().unwrap_or_default())
    }
}

/// The rights of the shown token, where one is required.
pub(super) struct Bearer(pub(super) Option<Grant>);

impl<S: Send + Sync> FromRequestParts<S> for Bearer {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Bearer(parts.extensions.get::<Grant>().cloned()))
    }
}

/// A token, without its secret, which is nowhere kept.
#[derive(Serialize, ToSchema)]
pub(super) struct TokenInfo {
    /// Its name for programs.
    #[schema(value_type = String)]
    id: String,
    /// Its name for people.
    name: String,
    /// The rights of its bearer.
    role: Role,
    /// On which datasets; all, if there is no list.
    #[serde(skip_serializing_if = "Scope::is_all")]
    #[schema(value_type = Option<Vec<schema::DatasetName>>)]
    datasets: Scope,
    /// When it was made, in seconds since 1970.
    created_at: u64,
    /// When it ends, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_at: Option<u64>,
}

impl TokenInfo {
    fn of(id: TokenId, record: &TokenRecord) -> TokenInfo {
        let TokenRecord { name, role, datasets, created_at, expires_at, .. } = record.clone();
        TokenInfo { id: id.to_string(), name, role, datasets, created_at, expires_at }
    }
}

/// The token to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewToken {
    /// Its name for people: the person or program that gets it.
    #[schema(min_length = 1, max_length = 100)]
    name: String,
    /// The rights of its bearer.
    role: Role,
    /// On which datasets; all, if none is named.
    #[serde(default)]
    #[schema(value_type = Vec<schema::DatasetName>)]
    datasets: Vec<DatasetName>,
    /// After how many seconds it ends; without it, it does not.
    #[serde(default)]
    #[schema(minimum = 1)]
    lifetime_seconds: Option<u64>,
}

/// A token that was just made.
#[derive(Serialize, ToSchema)]
pub(super) struct MadeToken {
    /// The secret that its bearer shows. It appears here, and never again.
    token: String,
    /// Its facts from now on.
    #[serde(flatten)]
    info: TokenInfo,
}

/// All tokens, without their secrets
#[utoipa::path(get, path = "/v1/tokens", tag = "access", operation_id = "list_tokens", params(Paged),
    responses((status = 200, description = "A page of the list", body = Vec<TokenInfo>), (status = 422)))]
pub(super) async fn list(state: State, uri: Uri, ValidQuery(paged): ValidQuery<Paged>) -> Answer {
    let all = state.api.access.tokens.list();
    let all = all.iter().map(|(id, record)| TokenInfo::of(*id, record)).collect();
    pages::page(&uri, &paged, all, |token| token.id.clone())
}

/// Make a token
///
/// The first is an administrator's, for all datasets: from then on every node asks for one, and no other makes more.
#[utoipa::path(post, path = "/v1/tokens", tag = "access", operation_id = "create_token", request_body = NewToken,
    responses((status = 201, description = "The token", body = MadeToken), (status = 409), (status = 422)))]
pub(super) async fn create(state: State, ValidJson(new): ValidJson<NewToken>) -> Answer {
    let NewToken { name, role, datasets, lifetime_seconds } = new;
    if name.trim().is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        return Err(invalid(format!(
            "name: give one of 1 to {LONGEST_NAME} bytes, for people to know it by"
        )));
    }
    if lifetime_seconds == Some(0) {
        return Err(invalid("lifetime_seconds: a token of 0 seconds would be of no use; give 1 or more"));
    }
    let tokens = &state.api.access.tokens;
    if tokens.list().is_empty() && (role != Role::Admin || !datasets.is_empty()) {
        return Err(Refusal::of(
            Kind::Conflict,
            "role: the first token is an administrator's, for all datasets: from then on every node asks for one, and no other makes \
             more; make that first, with `shardctl token create NAME --role admin`",
        ));
    }
    let lifetime = lifetime_seconds.map(Duration::from_secs);
    let (token, record) = tokens.create(name, role, Scope::of(datasets), lifetime).await?;
    let made = MadeToken { token: token.reveal(), info: TokenInfo::of(token.id, &record) };
    Ok((StatusCode::CREATED, json(&made)?).into_response())
}

/// Revoke a token; takes effect at once
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "access", operation_id = "revoke_token",
    params(("id" = String, Path, description = "Its name for programs", pattern = "^[0-9a-f]{16}$")),
    responses((status = 204, description = "The token is revoked"), (status = 404), (status = 409)))]
pub(super) async fn revoke(state: State, PathParam(id): PathParam<TokenId>) -> Answer {
    let tokens = &state.api.access.tokens;
    let is_alone = tokens.list().iter().all(|(other, _)| *other == id);
    let still_asked = !is_alone || state.api.access.asked == TokensAsked::Always;
    if still_asked && tokens.has_administrator(None) && !tokens.has_administrator(Some(id)) {
        return Err(Refusal::of(
            Kind::Conflict,
            format!(
                "token {id} is the last administrator's, and tokens are asked without it, too; make another one first"
            ),
        ));
    }
    match tokens.revoke(id).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(not_found(format!("there is no token {id}"))),
    }
}
