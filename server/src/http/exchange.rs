//! Routes for the operator overrides of the exchange.

use shardd_api::exchange::{ChangeExchange, ExchangeOverrides};

use super::{Answer, State, ValidJson, json};

/// The overrides of the exchange's rate and pause, for all nodes and for single ones
///
/// Its pace at a node, and its queue there, are in the node's state (`exchange_now`).
#[utoipa::path(get, path = "/v1/exchange", tag = "cluster", operation_id = "get_exchange",
    responses((status = 200, description = "The state known to this node", body = ExchangeOverrides)))]
pub(super) async fn show(state: State) -> Answer {
    json(&state.api.engine.exchange_overrides())
}

/// Override the exchange's rate or pause, for one node or for all
///
/// It holds until the next override, also for nodes that start again. A word about all takes back those about
/// one.
#[utoipa::path(put, path = "/v1/exchange", tag = "cluster", operation_id = "put_exchange", request_body = ChangeExchange,
    responses((status = 200, description = "The current rates", body = ExchangeOverrides), (status = 404)))]
pub(super) async fn change(state: State, ValidJson(change): ValidJson<ChangeExchange>) -> Answer {
    json(&state.api.engine.change_exchange(&change).await?)
}
