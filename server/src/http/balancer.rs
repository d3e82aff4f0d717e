//! Routes for the balancer: its settings, the shares of nodes, and its journal.

use shardd_api::balancer::{BalancerRecord, Settings};

use super::{Answer, State, ValidJson, json};

/// The settings, shares and journal of the balancer
///
/// It gives slow nodes a smaller share of the partitions. Nodes that are not listed have a full share.
#[utoipa::path(get, path = "/v1/balancer", tag = "cluster", operation_id = "get_balancer",
    responses((status = 200, description = "The state known to this node", body = BalancerRecord)))]
pub(super) async fn show(state: State) -> Answer {
    json(&state.api.engine.balancer())
}

/// Set the mode and the budget of the balancer
///
/// Another mode forgets the shares that were given or only observed so far.
#[utoipa::path(put, path = "/v1/balancer", tag = "cluster", operation_id = "put_balancer", request_body = Settings,
    responses((status = 200, description = "The state from now on", body = BalancerRecord), (status = 422)))]
pub(super) async fn set(state: State, ValidJson(settings): ValidJson<Settings>) -> Answer {
    json(&state.api.engine.set_balancer(settings).await?)
}
