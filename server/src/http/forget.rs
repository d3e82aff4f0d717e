//! Rows that are forgotten, and what holds them.

use shardd_store::catalog::{Forget, ForgetReport};

use super::problem::invalid;
use super::{Answer, State, ValidJson, json};

/// Forget rows: delete the objects that hold them, or list these
///
/// No dataset's present version may have them any more: commit versions without them first. Histories are cut, and tags, plans and runs over
/// versions that have them are removed. Nodes drop what their caches have of the shards, and the store does not take these again.
#[utoipa::path(post, path = "/v1/forget", tag = "cluster", operation_id = "forget", request_body = Forget,
    responses((status = 200, description = "The holders of the rows, and the deleted objects", body = ForgetReport),
        (status = 409), (status = 422)))]
pub(super) async fn forget(state: State, ValidJson(forget): ValidJson<Forget>) -> Answer {
    if forget.rows.len() > Forget::MOST_ROWS {
        return Err(invalid(format!(
            "{} rows are too many: send {} at most",
            forget.rows.len(),
            Forget::MOST_ROWS
        )));
    }
    json(&state.api.catalog.forget(&forget).await?)
}
