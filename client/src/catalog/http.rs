//! A catalog through the HTTP API of a server. What comes back is verified here: the server need not be trusted.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use shardfmt::plan::PlanDocument;
use shardfmt::{DatasetName, FinishedShard, Manifest, PlanId, ShardEntry, ShardId, VersionId};

use super::{Catalog, CatalogError, DatasetInfo, PlanInfo};
use crate::http::{HttpClient, HttpError};
use crate::problem;

/// How long one request may take: enough for a large shard over a slow network.
const WITHIN: Duration = Duration::from_secs(120);

/// A [`Catalog`] that asks a server.
pub struct HttpCatalog {
    server: String,
    client: HttpClient,
}

impl HttpCatalog {
    /// A catalog that asks the server at `url`, such as `http://127.0.0.1:7700`.
    pub fn new(url: &str) -> Self {
        Self { server: url.trim_end_matches('/').to_owned(), client: HttpClient::new(WITHIN) }
    }

    fn url(&self, path: std::fmt::Arguments<'_>) -> String {
        format!("{}/v1/{path}", self.server)
    }

    /// Bytes that must hash to their name.
    fn get_verified(
        &self,
        path: std::fmt::Arguments<'_>,
        what: String,
        right: impl FnOnce(&Bytes) -> bool,
    ) -> Result<Bytes, CatalogError> {
        let bytes = self.client.get(&self.url(path)).map_err(|error| refused(error, &what))?;
        if right(&bytes) { Ok(bytes) } else { Err(self.corrupt(what)) }
    }

    fn corrupt(&self, what: String) -> CatalogError {
        CatalogError::Corrupt { what, server: self.server.clone() }
    }
}

impl Catalog for HttpCatalog {
    fn datasets(&self) -> Result<Vec<DatasetInfo>, CatalogError> {
        self.client
            .get_json(&self.url(format_args!("datasets")))
            .map_err(|error| refused(error, "list of datasets"))
    }

    fn dataset(&self, name: &DatasetName) -> Result<DatasetInfo, CatalogError> {
        let answer = self.client.get_json(&self.url(format_args!("datasets/{name}")));
        answer.map_err(|error| refused(error, &format!("dataset {name}")))
    }

    fn manifest(&self, version: VersionId) -> Result<Manifest, CatalogError> {
        let what = format!("version {version}");
        let right = |bytes: &Bytes| VersionId::of(bytes) == version;
        let bytes = self.get_verified(format_args!("manifests/{version}"), what.clone(), right)?;
        Manifest::decode(&bytes).map_err(|_| self.corrupt(what))
    }

    fn shard(&self, entry: &ShardEntry) -> Result<Bytes, CatalogError> {
        let right = |bytes: &Bytes| ShardId::of(bytes) == entry.id;
        self.get_verified(format_args!("shards/{}", entry.id), format!("shard {}", entry.id), right)
    }

    fn put_shard(&self, shard: &FinishedShard) -> Result<(), CatalogError> {
        let what = format!("shard {}", shard.id);
        let put = |url: String, bytes: &[u8]| match self.client.put(&url, bytes) {
            Ok(_) => Ok(()),
            Err(error) => Err(refused(error, &what)),
        };
        put(self.url(format_args!("shards/{}", shard.id)), &shard.bytes)?;
        put(self.url(format_args!("shards/{}/rows", shard.id)), &shard.sidecar.encode())
    }

    fn has_shard(&self, id: &ShardId) -> Result<bool, CatalogError> {
        let there = |url: String| match self.client.head(&url) {
            Ok(()) => Ok(true),
            Err(HttpError::Problem { status: 404, .. }) => Ok(false),
            Err(error) => Err(refused(error, &format!("shard {id}"))),
        };
        Ok(there(self.url(format_args!("shards/{id}")))?
            && there(self.url(format_args!("shards/{id}/rows")))?)
    }

    fn commit(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        manifest: &Manifest,
    ) -> Result<DatasetInfo, CatalogError> {
        let bytes = manifest.encode();
        let version = VersionId::of(&bytes);
        let what = format!("version {version}");
        let put = self.client.put(&self.url(format_args!("manifests/{version}")), &bytes);
        put.map_err(|error| refused(error, &what))?;
        let change = json!({ "expected": expected, "version": version });
        match self.client.put_json(&self.url(format_args!("datasets/{name}")), &change) {
            Ok(answer) => serde_json::from_slice(&answer).map_err(|error| {
                let reason = format!("not what a commit answers: {error}");
                CatalogError::Http(HttpError::Protocol { url: self.server.clone(), reason })
            }),
            Err(HttpError::Problem { status: 409, .. }) => {
                let actual = match self.resolve(name) {
                    Ok(actual) => Some(actual),
                    Err(CatalogError::NotFound { .. }) => None,
                    Err(error) => return Err(error),
                };
                Err(CatalogError::Conflict { dataset: name.clone(), expected, actual })
            }
            Err(error) => Err(refused(error, &what)),
        }
    }

    fn put_plan(&self, plan: &PlanDocument) -> Result<PlanId, CatalogError> {
        let id = plan.id();
        let posted = self.client.post_for_bytes(&self.url(format_args!("plans")), plan);
        posted.map_err(|error| refused(error, &format!("version {}", plan.version)))?;
        Ok(id)
    }

    fn plans(&self) -> Result<Vec<PlanInfo>, CatalogError> {
        self.client
            .get_json(&self.url(format_args!("plans")))
            .map_err(|error| refused(error, "list of plans"))
    }

    fn plan(&self, id: PlanId) -> Result<PlanDocument, CatalogError> {
        let what = format!("plan {id}");
        let answer = self.client.get(&self.url(format_args!("plans/{id}")));
        let bytes = answer.map_err(|error| refused(error, &what))?;
        let document = PlanDocument::from_bytes(&bytes)?;
        // The id is that of the canonical form, whatever layout the server sent.
        if document.id() == id { Ok(document) } else { Err(self.corrupt(what)) }
    }
}

/// A server's answer as this catalog's error.
fn refused(error: HttpError, what: &str) -> CatalogError {
    match error {
        HttpError::Problem { status: 404, kind, detail, .. } => {
            // A server of ours says what is missing; anything else in its place did not know the path.
            let what = if kind == problem::NOT_FOUND { what.to_owned() } else { format!("{what}: {detail}") };
            CatalogError::NotFound { what }
        }
        HttpError::Problem { status, detail, .. } => CatalogError::Refused { status, detail },
        error => CatalogError::Http(error),
    }
}
