//! What is said of the exchange while the nodes run.

use shardd_client::engine::{ChangeExchange, ExchangeWishes};

use super::{Answer, Posted, State, json};

/// What was said of the exchange, of all nodes and of single ones
///
/// How it goes on at a node, and what waits there, is in the node's state (`exchange_now`).
#[utoipa::path(get, path = "/v1/exchange", tag = "cluster", operation_id = "get_exchange",
    responses((status = 200, description = "As far as this node knows", body = ExchangeWishes)))]
pub(super) async fn show(state: State) -> Answer {
    json(&state.api.engine.exchange_wishes())
}

/// Say how the exchange goes on, of one node or of all
///
/// It holds until something else is said, also for nodes that start again. A word about all takes back those about one.
#[utoipa::path(put, path = "/v1/exchange", tag = "cluster", operation_id = "put_exchange", request_body = ChangeExchange,
    responses((status = 200, description = "What is said now", body = ExchangeWishes), (status = 404)))]
pub(super) async fn change(state: State, Posted(change): Posted<ChangeExchange>) -> Answer {
    json(&state.api.engine.change_exchange(&change).await?)
}
