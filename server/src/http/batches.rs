//! A rank's micro-batches as an Arrow IPC stream: what a trainer reads that has only HTTP and Arrow.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::Schema;
use arrow::ipc::writer::StreamEncoder;
use axum::body::{Body, Bytes};
use axum::http::Method;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::IntoResponse;
use futures::stream;
use serde::Deserialize;
use shardd_api::problem::Kind;
use shardd_api::schema::Digest;
use shardd_client::loader::{BatchStream, Batches, BatchesConfig, GrainReader, LoadError, Step, Transforms};
use shardd_engine::engine::PlanReader;
use shardd_plan::GrainNo;
use shardd_transforms::OnError;
use shardfmt::PlanId;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::IntoParams;

use super::client::Client;
use super::openapi::Binary;
use super::quota::Loan;
use super::{Answer, PathParam, STREAMS, State, ValidQuery, place, stream_memory};

/// The media type of Arrow streams.
const ARROW_STREAM: &str = "application/vnd.apache.arrow.stream";

/// Which batches are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// The epoch, from 0.
    #[serde(default)]
    #[param(default = 0, required = false)]
    epoch: u32,
    /// The first position of the epoch's global order.
    #[serde(default)]
    #[param(default = 0, required = false)]
    position: u64,
    /// Samples that all ranks together read in a step.
    #[param(minimum = 1)]
    global_batch_size: u64,
    /// Whose share it is, from 0.
    #[serde(default)]
    #[param(default = 0, required = false)]
    rank: u32,
    /// How many ranks there are.
    #[serde(default = "one")]
    #[param(minimum = 1, default = 1, required = false)]
    world: u32,
    /// How many virtual ranks there are; by default as many as the plan has for steps of global_batch_size.
    #[param(minimum = 1, nullable = false)]
    virtual_ranks: Option<u32>,
    /// How many steps; by default to the end of the epoch.
    #[param(minimum = 1, nullable = false)]
    steps: Option<u64>,
    /// Transforms of a column of pictures, as JSON.
    #[param(nullable = false)]
    transforms: Option<String>,
}

fn one() -> u32 {
    1
}

/// Read a rank's share of an epoch, step by step
///
/// One record batch for each micro-batch: the steps in order, and in each the rank's virtual ranks in theirs. The schema's
/// metadata says which plan, epoch, position and step it begins with (`shardd.plan`, `shardd.epoch`, `shardd.position`,
/// `shardd.step`), and how steps and micro-batches follow (`shardd.global_batch_size`, `shardd.virtual_ranks`,
/// `shardd.virtual_rank` of the first, `shardd.micro_batches` a step). It ends with the epoch. A stream that breaks off
/// without its end mark did not get that far: ask again from the position that was reached.
#[utoipa::path(get, path = "/v1/plans/{id}/batches", tag = "plans", operation_id = "batches",
    params(("id" = Digest, Path, description = "The plan"), Wanted),
    responses(
        (status = 200, description = "An Arrow IPC stream", body = Binary, content_type = "application/vnd.apache.arrow.stream"),
        (status = 404), (status = 422)))]
pub(super) async fn batches(
    state: State,
    client: Client,
    method: Method,
    PathParam(plan): PathParam<PlanId>,
    ValidQuery(wanted): ValidQuery<Wanted>,
) -> Answer {
    let stream = place(&state.streams, "streams of batches", STREAMS)?;
    let Wanted { epoch, position, global_batch_size, rank, world, virtual_ranks, steps, transforms } = wanted;
    let transforms = transforms.map(|json| chain_of(&json)).transpose()?;
    let config =
        BatchesConfig { epoch, position, global_batch_size, rank, world, virtual_ranks, steps, transforms };
    let reader = PlanReader::open(&state.api.engine, plan).await?;
    let batch_stream = BatchStream::open(Arc::clone(reader.plan()), reader.manifest(), config.clone())?;
    let headers = [(CONTENT_TYPE, ARROW_STREAM), (CACHE_CONTROL, "no-store")];
    if method == Method::HEAD {
        return Ok((headers, Body::empty()).into_response());
    }
    let memory = stream_memory(&state, client, batch_stream.held_bytes())?;
    let grains = EngineGrains { reader: reader.clone(), runtime: Handle::current() };
    let (batches, read) = batch_stream.begin(Box::new(grains))?;
    reader.spawn_blocking(read);
    let encoded = Encoded::new(batches, &config, (stream, memory))?;
    let body = stream::try_unfold(encoded, |mut encoded| async move {
        let next = encoded.next().await?;
        Ok::<_, std::io::Error>(next.map(|bytes| (bytes, encoded)))
    });
    let body = futures::StreamExt::flat_map(body, |buffers| match buffers {
        Ok(buffers) => stream::iter(buffers.into_iter().map(Ok).collect::<Vec<_>>()),
        Err(error) => stream::iter(vec![Err(error)]),
    });
    Ok((headers, Body::from_stream(body)).into_response())
}

/// The most pixels of an image that a node decodes for a client.
const MOST_PIXELS: u64 = 32 << 20;

/// Transforms of a client, within a node's limits.
fn chain_of(json: &str) -> Result<Transforms, LoadError> {
    let mut chain: Transforms = json.parse()?;
    let has_columns = chain.columns().is_some();
    let Some(pictures) = chain.pictures_mut().filter(|_| !has_columns) else {
        return Err(LoadError::Config(
            "a node transforms pictures alone: transform sounds and columns where you read them".into(),
        ));
    };
    pictures.decode.max_pixels = pictures.decode.max_pixels.min(MOST_PIXELS);
    if chain.on_error() == OnError::Skip {
        let message =
            "a stream has every position of its steps: use \"on_error\": \"zero\" or \"raise\" in transforms";
        return Err(LoadError::Config(message.into()));
    }
    Ok(chain)
}

/// The grains of a stream, by way of this node's engine.
struct EngineGrains {
    reader: PlanReader,
    runtime: Handle,
}

impl GrainReader for EngineGrains {
    fn read(&mut self, epoch: u32, grains: &[GrainNo]) -> Result<HashMap<GrainNo, Bytes>, LoadError> {
        let read = self.runtime.block_on(self.reader.read(epoch, grains));
        read.map_err(|error| LoadError::grains(Kind::from(&error), error))
    }
}

/// Steps on their way to the client. Nothing is read faster than it takes them.
struct Encoded {
    batches: Batches,
    schema: Arc<Schema>,
    encoder: Option<StreamEncoder>,
    _room: (OwnedSemaphorePermit, Loan),
}

impl Encoded {
    fn new(
        batches: Batches,
        config: &BatchesConfig,
        room: (OwnedSemaphorePermit, Loan),
    ) -> Result<Self, LoadError> {
        let facts = [
            ("plan", batches.plan.to_string()),
            ("epoch", config.epoch.to_string()),
            ("position", config.position.to_string()),
            ("step", (config.position / config.global_batch_size).to_string()),
            ("global_batch_size", config.global_batch_size.to_string()),
            ("rank", config.rank.to_string()),
            ("world", config.world.to_string()),
            ("virtual_ranks", batches.virtual_ranks.to_string()),
            ("virtual_rank", batches.own.start.to_string()),
            ("micro_batches", batches.own.len().to_string()),
        ];
        let mut metadata = batches.schema.metadata().clone();
        metadata.extend(facts.map(|(name, value)| (format!("shardd.{name}"), value)));
        let schema = Arc::new(batches.schema.as_ref().clone().with_metadata(metadata));
        let encoder = StreamEncoder::try_new(&schema).map_err(unencodable)?;
        Ok(Self { batches, schema, encoder: Some(encoder), _room: room })
    }

    /// The bytes of the next step, or of the end; `None` after it.
    async fn next(&mut self) -> Result<Option<Vec<Bytes>>, std::io::Error> {
        let Some(mut encoder) = self.encoder.take() else { return Ok(None) };
        let mut buffers = Vec::new();
        match self.batches.steps.recv().await {
            None => buffers.extend(encoder.finish().map_err(std::io::Error::other)?),
            Some(step) => {
                let step: Step = step.map_err(|error| {
                    tracing::warn!(%error, "a stream of batches broke off");
                    std::io::Error::other(error)
                })?;
                for failed in step.failed() {
                    tracing::warn!(
                        epoch = failed.epoch,
                        position = failed.position,
                        reason = failed.reason,
                        "a sample is zeros"
                    );
                }
                for micro_batch in step.micro_batches {
                    let batch = micro_batch.batch.with_schema(Arc::clone(&self.schema));
                    let encoded = batch.and_then(|batch| encoder.encode(&batch));
                    buffers.extend(encoded.map_err(std::io::Error::other)?);
                }
                self.encoder = Some(encoder);
            }
        }
        let filled = buffers.into_iter().filter(|buffer| !buffer.is_empty());
        Ok(Some(filled.map(Bytes::from_owner).collect()))
    }
}

fn unencodable(error: arrow::error::ArrowError) -> LoadError {
    LoadError::Config(format!("the columns cannot be sent as an Arrow stream: {error}"))
}
