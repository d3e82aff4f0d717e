//! Garbage: what nothing in the catalog reaches, and its deletion.

use shardd_client::catalog::GcOptions;

use super::{Answer, Posted, State, json};

pub(super) async fn collect(state: State, Posted(options): Posted<GcOptions>) -> Answer {
    json(&state.api.catalog.gc(&options).await?)
}
