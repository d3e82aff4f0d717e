//! A catalog through the HTTP API of a server. The client verifies answers: it need not trust the server.

use std::io;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use shardd_api::problem::Kind;
use shardd_api::protocol::{AuditReport, RunId, RunRecord, RunView};
use shardd_plan::{PlanDocument, StrataOf};
use shardfmt::manifest::ManifestBytes;
use shardfmt::{
    CommitId, DatasetName, DatasetRef, FinishedShard, Manifest, ManifestError, ManifestFile, Message,
    Operation, PlanId, Provenance, ShardEntry, ShardId, Sidecar, StrataId, TagName, VersionId,
};

use super::{
    Catalog, CatalogError, CommitNote, DatasetInfo, Forget, ForgetReport, GcOptions, GcReport, LogEntry,
    PlanInfo, Pruned, RecoverOptions, RecoverReport, RemoveRun, RunInfo, TagExpected, TagInfo,
};
use crate::http::{Credentials, HttpClient, HttpError};

/// How long one request may take: enough for a large shard over a slow network.
const WITHIN: Duration = Duration::from_secs(120);
/// Commits asked for at once.
const LOG_PAGE: usize = 1000;
/// How long a gc may take. One that takes longer is given up halfway by the server, and can be repeated.
const GC_WITHIN: Duration = Duration::from_secs(660);
/// How long a forget may take, which looks at every shard of the store.
const FORGET_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// A [`Catalog`] that asks a server.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_store::catalog::{Catalog, HttpCatalog};
///
/// let catalog = HttpCatalog::new("http://127.0.0.1:7700");
/// let digits = catalog.dataset(&"digits".parse()?)?;
/// assert_eq!(catalog.manifest(digits.version)?.sample_count(), digits.samples);
/// # Ok(())
/// # }
/// ```
pub struct HttpCatalog {
    server: String,
    client: HttpClient,
    patient: HttpClient,
    /// For a forget.
    most_patient: HttpClient,
}

impl HttpCatalog {
    /// A catalog that asks the server at `url`, such as `http://127.0.0.1:7700`, with the credentials of the environment.
    pub fn new(url: &str) -> Self {
        Self::over(url, HttpClient::new)
    }

    /// The same, with these credentials.
    pub fn with(url: &str, credentials: &Credentials) -> Self {
        Self::with_token_of(url, credentials, None)
    }

    /// The same, with the source of the token, which errors about the token name.
    pub(crate) fn with_token_of(url: &str, credentials: &Credentials, source: Option<&str>) -> Self {
        Self::over(url, |within| {
            HttpClient::with(within, credentials).with_token_of(source.map(str::to_owned))
        })
    }

    fn over(url: &str, client: impl Fn(Duration) -> HttpClient) -> Self {
        let server = url.trim_end_matches('/').to_owned();
        let (client, patient, most_patient) = (client(WITHIN), client(GC_WITHIN), client(FORGET_WITHIN));
        Self { server, client, patient, most_patient }
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

    /// PUT of JSON, JSON out.
    fn put_json<T: DeserializeOwned>(&self, url: &str, body: &impl Serialize) -> Result<T, HttpError> {
        let answer = self.client.put_json(url, body)?;
        serde_json::from_slice(&answer).map_err(|error| HttpError::Protocol {
            url: url.to_owned(),
            reason: format!("not the JSON expected: {error}"),
        })
    }

    /// Makes a version that the server has the present one.
    fn commit_version(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        version: VersionId,
        note: &CommitNote,
    ) -> Result<DatasetInfo, CatalogError> {
        let CommitNote { operation, message, provenance: _ } = note;
        let change =
            json!({ "expected": expected, "version": version, "operation": operation, "message": message });
        match self.put_json(&self.url(format_args!("datasets/{name}")), &change) {
            Err(HttpError::Problem { status: 409, .. }) => Err(CatalogError::Conflict {
                dataset: name.clone(),
                expected,
                actual: or_none(self.dataset(name))?.map(|info| info.version),
            }),
            answer => answer.map_err(|error| refused(error, &format!("version {version}"))),
        }
    }

    /// Why a tag was not changed that was expected at a version, or nowhere.
    fn tag_refused(
        &self,
        error: HttpError,
        dataset: &DatasetName,
        tag: &TagName,
        expected: Option<VersionId>,
    ) -> CatalogError {
        let HttpError::Problem { status: 409, .. } = error else { return as_said(error) };
        let url = self.url(format_args!("datasets/{dataset}/tags/{tag}"));
        match or_none(self.client.get_json::<TagInfo>(&url).map_err(as_said)) {
            Ok(actual) => CatalogError::TagConflict {
                dataset: dataset.clone(),
                tag: tag.clone(),
                expected,
                actual: actual.map(|tag| tag.version),
            },
            Err(error) => error,
        }
    }
}

impl Catalog for HttpCatalog {
    fn datasets(&self) -> Result<Vec<DatasetInfo>, CatalogError> {
        self.client
            .get_list(&self.url(format_args!("datasets")), usize::MAX)
            .map_err(|error| refused(error, "list of datasets"))
    }

    fn resolve(&self, reference: &DatasetRef) -> Result<DatasetInfo, CatalogError> {
        self.client.get_json(&self.url(format_args!("datasets/{reference}"))).map_err(as_said)
    }

    fn log(&self, name: &DatasetName, limit: usize) -> Result<Vec<LogEntry>, CatalogError> {
        let url = self.url(format_args!("datasets/{name}/log?limit={}", limit.clamp(1, LOG_PAGE)));
        self.client.get_list(&url, limit).map_err(as_said)
    }

    fn manifest(&self, version: VersionId) -> Result<Manifest, CatalogError> {
        let what = format!("version {version}");
        let right = |bytes: &Bytes| VersionId::of(bytes) == version;
        let bytes = self.get_verified(format_args!("manifests/{version}"), what.clone(), right)?;
        Manifest::decode(&bytes).map_err(|_| self.corrupt(what))
    }

    fn open_manifest(&self, version: VersionId) -> Result<ManifestFile, CatalogError> {
        let what = format!("version {version}");
        let url = self.url(format_args!("manifests/{version}"));
        let served = ServedManifest { client: self.client.clone(), url };
        ManifestFile::open(version, served).map_err(|error| match error {
            ManifestError::Unread { source } => match source.downcast::<HttpError>() {
                Ok(error) => refused(error, &what),
                Err(source) => CatalogError::Http(HttpError::Unreachable {
                    url: self.server.clone(),
                    reason: source.to_string(),
                }),
            },
            _ => self.corrupt(what),
        })
    }

    fn provenance(&self, version: VersionId) -> Result<Option<Provenance>, CatalogError> {
        let what = format!("provenance of version {version}");
        let answer = self.client.get(&self.url(format_args!("manifests/{version}/provenance")));
        let Some(bytes) = or_none(answer.map_err(|error| refused(error, &what)))? else { return Ok(None) };
        Provenance::from_bytes(&bytes).map(Some).map_err(|_| self.corrupt(what))
    }

    fn shard(&self, entry: &ShardEntry) -> Result<Bytes, CatalogError> {
        let right = |bytes: &Bytes| ShardId::of(bytes) == entry.id;
        self.get_verified(format_args!("shards/{}", entry.id), format!("shard {}", entry.id), right)
    }

    fn shard_file(&self, id: ShardId) -> Result<Bytes, CatalogError> {
        let answer = self.client.get(&self.url(format_args!("shards/{id}")));
        answer.map_err(|error| refused(error, &format!("shard {id}")))
    }

    fn sidecar_file(&self, id: ShardId) -> Result<Bytes, CatalogError> {
        let answer = self.client.get(&self.url(format_args!("shards/{id}/rows")));
        answer.map_err(|error| refused(error, &format!("sidecar of shard {id}")))
    }

    fn sidecar(&self, entry: &ShardEntry) -> Result<Sidecar, CatalogError> {
        let bytes = self.sidecar_file(entry.id)?;
        let right = |sidecar: &Sidecar| {
            sidecar.shard == entry.id
                && sidecar.rows.len() as u64 == u64::from(entry.rows)
                && sidecar.root() == entry.root
        };
        let sidecar = Sidecar::decode(&bytes).ok().filter(right);
        sidecar.ok_or_else(|| self.corrupt(format!("sidecar of shard {}", entry.id)))
    }

    fn shard_ranges(&self, id: ShardId, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, CatalogError> {
        let url = self.url(format_args!("shards/{id}"));
        let part = |range: &Range<u64>| match range.is_empty() {
            true => Ok(Bytes::new()),
            false => self.client.get_range(&url, range.clone()),
        };
        let parts: Result<_, _> = ranges.iter().map(part).collect();
        parts.map_err(|error| refused(error, &format!("shard {id}")))
    }

    fn put_manifest(&self, manifest: &Manifest) -> Result<VersionId, CatalogError> {
        let bytes = manifest.encode();
        let version = VersionId::of(&bytes);
        let put = self.client.put(&self.url(format_args!("manifests/{version}")), &bytes);
        put.map(|_| version).map_err(|error| refused(error, &format!("version {version}")))
    }

    fn put_provenance(&self, version: VersionId, provenance: &Provenance) -> Result<(), CatalogError> {
        let url = self.url(format_args!("manifests/{version}/provenance"));
        let put = self.client.put(&url, &provenance.to_bytes());
        put.map(drop).map_err(|error| refused(error, &format!("provenance of version {version}")))
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
        note: &CommitNote,
    ) -> Result<DatasetInfo, CatalogError> {
        let version = self.put_manifest(manifest)?;
        if let Some(provenance) = &note.provenance {
            self.put_provenance(version, provenance)?;
        }
        self.commit_version(name, expected, version, note)
    }

    fn restore(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        version: VersionId,
        message: &Message,
    ) -> Result<DatasetInfo, CatalogError> {
        let note = CommitNote { message: message.clone(), ..CommitNote::of(Operation::RESTORE) };
        self.commit_version(name, expected, version, &note)
    }

    fn remove_dataset(&self, name: &DatasetName, expected: VersionId) -> Result<(), CatalogError> {
        match self.client.delete(&self.url(format_args!("datasets/{name}?expected={expected}"))) {
            Ok(_) => Ok(()),
            Err(HttpError::Problem { status: 409, .. }) => Err(CatalogError::Conflict {
                dataset: name.clone(),
                expected: Some(expected),
                actual: or_none(self.dataset(name))?.map(|info| info.version),
            }),
            Err(error) => Err(as_said(error)),
        }
    }

    fn prune(&self, name: &DatasetName, oldest: CommitId) -> Result<u64, CatalogError> {
        let url = self.url(format_args!("datasets/{name}/log?before={oldest}"));
        let answer = self.client.delete(&url).map_err(as_said)?;
        let pruned: Pruned = serde_json::from_slice(&answer).map_err(|error| {
            let reason = format!("not the JSON expected: {error}");
            CatalogError::Http(HttpError::Protocol { url, reason })
        })?;
        Ok(pruned.commits)
    }

    fn tags(&self, dataset: Option<&DatasetName>) -> Result<Vec<TagInfo>, CatalogError> {
        let url = match dataset {
            Some(dataset) => self.url(format_args!("datasets/{dataset}/tags")),
            None => self.url(format_args!("tags")),
        };
        self.client.get_list(&url, usize::MAX).map_err(as_said)
    }

    fn put_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        commit: CommitId,
        expected: TagExpected,
    ) -> Result<TagInfo, CatalogError> {
        let url = self.url(format_args!("datasets/{dataset}/tags/{tag}"));
        let put = self.put_json(&url, &json!({ "commit": commit, "expected": expected }));
        put.map_err(|error| self.tag_refused(error, dataset, tag, expected.version()))
    }

    fn remove_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        expected: VersionId,
    ) -> Result<(), CatalogError> {
        let url = self.url(format_args!("datasets/{dataset}/tags/{tag}?expected={expected}"));
        let deleted = self.client.delete(&url);
        deleted.map(|_| ()).map_err(|error| self.tag_refused(error, dataset, tag, Some(expected)))
    }

    fn put_plan(&self, plan: &PlanDocument) -> Result<PlanId, CatalogError> {
        let id = plan.id();
        if let Some(strata) = plan.strata.as_ref().and_then(|strata| strata.get()) {
            let strata = strata.encode();
            let named = StrataId::of(&strata);
            let put = self.client.put(&self.url(format_args!("strata/{named}")), &strata);
            put.map_err(|error| refused(error, &format!("strata {named}")))?;
        }
        let posted = self.client.post_for_bytes(&self.url(format_args!("plans")), plan);
        posted.map_err(as_said)?;
        Ok(id)
    }

    fn plans(&self) -> Result<Vec<PlanInfo>, CatalogError> {
        self.client
            .get_list(&self.url(format_args!("plans")), usize::MAX)
            .map_err(|error| refused(error, "list of plans"))
    }

    fn plan(&self, id: PlanId) -> Result<PlanDocument, CatalogError> {
        let what = format!("plan {id}");
        let answer = self.client.get(&self.url(format_args!("plans/{id}")));
        let bytes = answer.map_err(|error| refused(error, &what))?;
        let mut document = PlanDocument::from_bytes(&bytes)?;
        // The id is that of the canonical form, whatever layout the server sent.
        if document.id() != id {
            return Err(self.corrupt(what));
        }
        if let Some(strata) = document.strata.as_ref().map(StrataOf::id) {
            let right = |bytes: &Bytes| StrataId::of(bytes) == strata;
            let bytes =
                self.get_verified(format_args!("strata/{strata}"), format!("strata {strata}"), right)?;
            document.supply_strata(&bytes)?;
        }
        Ok(document)
    }

    fn remove_plan(&self, id: PlanId) -> Result<(), CatalogError> {
        self.client.delete(&self.url(format_args!("plans/{id}"))).map(|_| ()).map_err(as_said)
    }

    fn run(&self, id: &RunId) -> Result<RunRecord, CatalogError> {
        let view: RunView = self.client.get_json(&self.url(format_args!("runs/{id}"))).map_err(as_said)?;
        Ok(view.run)
    }

    fn runs(&self) -> Result<Vec<RunInfo>, CatalogError> {
        let answer = self.patient.get_list(&self.url(format_args!("runs?details=true")), usize::MAX);
        answer.map_err(|error| refused(error, "list of runs"))
    }

    fn remove_run(&self, id: &RunId, options: RemoveRun) -> Result<RunInfo, CatalogError> {
        let RemoveRun { force, checkpoints } = options;
        let url = self.url(format_args!("runs/{id}?force={force}&checkpoints={checkpoints}"));
        match self.patient.delete(&url) {
            Ok(answer) => serde_json::from_slice(&answer).map_err(|error| {
                let reason = format!("not the JSON expected: {error}");
                CatalogError::Http(HttpError::Protocol { url: url.clone(), reason })
            }),
            Err(HttpError::Problem { status: 409, .. }) => Err(CatalogError::Running { run: id.to_string() }),
            Err(error) => Err(as_said(error)),
        }
    }

    fn audits(&self, run: &RunId) -> Result<Vec<AuditReport>, CatalogError> {
        self.client.get_list(&self.url(format_args!("runs/{run}/audit")), usize::MAX).map_err(as_said)
    }

    fn gc(&self, options: &GcOptions) -> Result<GcReport, CatalogError> {
        self.patient.post_json(&self.url(format_args!("gc")), options).map_err(as_said)
    }

    fn forget(&self, forget: &Forget) -> Result<ForgetReport, CatalogError> {
        self.most_patient.post_json(&self.url(format_args!("forget")), forget).map_err(as_said)
    }

    fn recover(&self, options: RecoverOptions) -> Result<RecoverReport, CatalogError> {
        self.patient.post_json(&self.url(format_args!("recover")), &options).map_err(as_said)
    }
}

/// `None` where there is no such thing.
fn or_none<T>(found: Result<T, CatalogError>) -> Result<Option<T>, CatalogError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(CatalogError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A server's answer as this catalog's error, in the server's words.
fn as_said(error: HttpError) -> CatalogError {
    let what = match &error {
        HttpError::Problem { detail, .. } => detail.strip_prefix("there is no ").unwrap_or(detail).to_owned(),
        _ => String::new(),
    };
    refused(error, &what)
}

/// A manifest that a server has.
struct ServedManifest {
    client: HttpClient,
    url: String,
}

impl ManifestBytes for ServedManifest {
    fn whole(&self) -> io::Result<Vec<u8>> {
        self.client.get(&self.url).map(Vec::from).map_err(io::Error::other)
    }

    fn part(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.client.get_range(&self.url, range).map(Vec::from).map_err(io::Error::other)
    }

    fn tree(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.client.get_range(&format!("{}/tree", self.url), range).map(Vec::from).map_err(io::Error::other)
    }
}

/// A server's answer as this catalog's error.
fn refused(error: HttpError, what: &str) -> CatalogError {
    match error {
        HttpError::Problem { status: 404, kind, detail, .. } => {
            // A server of ours names the missing thing; anything else in its place did not know the path.
            let what = if kind.parse() == Ok(Kind::NotFound) {
                what.to_owned()
            } else {
                format!("{what}: {detail}")
            };
            CatalogError::NotFound { what }
        }
        HttpError::Problem { status, detail, .. } => CatalogError::Refused { status, detail },
        error => CatalogError::Http(error),
    }
}
