//! Ranks whose connections end.

use shardd_store::catalog::{CatalogBackend, RunState as State};
use tokio::time::sleep;

use super::*;

const WORLD: u32 = 2;

async fn nodes_of(world: &World) -> Option<(Vec<Option<NodeId>>, Vec<u32>)> {
    let ranks = world.engines[0].ranks(&run("r")).await.expect("the metastore answers")?.0;
    Some((ranks.nodes, ranks.lost))
}

async fn state(world: &World) -> State {
    let meta: Arc<dyn Metastore> = Arc::clone(&world.meta) as _;
    let catalog = CatalogBackend::new(Arc::clone(world.engines[0].origin()), meta);
    catalog.run_info(&run("r")).await.expect("it is there").state
}

/// Two nodes with a rank each, and the ranks' connections to them.
async fn two_ranks() -> (World, Vec<RankConnection>) {
    let world = World::new(2, "0.1").await;
    world.know_each_other(2).await;
    world.attach(&run("r"), WORLD, 0).await;
    let mut connections = Vec::new();
    for (rank, engine) in (0..).zip(&world.engines) {
        connections.push(connect(engine, rank).await);
    }
    (world, connections)
}

async fn connect(engine: &Arc<Engine>, rank: u32) -> RankConnection {
    engine.connect(&run("r"), rank, Attach { world: WORLD, epoch: 0 }).await.expect("a rank of the run")
}

/// Longer than a rank may be without a connection.
async fn a_while() {
    sleep(Duration::from_secs(6)).await;
}

#[tokio::test(start_paused = true)]
async fn ranks_leave_the_run_when_their_processes_end() {
    let (world, mut connections) = two_ranks().await;
    a_while().await;
    let both = Some((vec![Some(node(1)), Some(node(2))], vec![]));
    assert_eq!(nodes_of(&world).await, both, "their connections are open");

    drop(connections.pop());
    sleep(Duration::from_secs(4)).await;
    assert_eq!(nodes_of(&world).await, both, "it may connect again");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(nodes_of(&world).await, Some((vec![Some(node(1)), None], vec![1])));
    assert_eq!(state(&world).await, State::Running);

    drop(connections.pop());
    a_while().await;
    assert_eq!((nodes_of(&world).await, state(&world).await), (None, State::Interrupted));

    world.attach(&run("r"), WORLD, 0).await;
    assert_eq!(state(&world).await, State::Running, "another launch");
    for (rank, engine) in (0..).zip(&world.engines) {
        engine.detach(&run("r"), rank).await.expect("it was attached");
    }
    assert_eq!(state(&world).await, State::Finished, "which has lost none");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_connects_again_or_detaches_is_not_lost() {
    let (world, mut connections) = two_ranks().await;
    drop(connections.pop());
    sleep(Duration::from_secs(4)).await;
    let again = connect(&world.engines[1], 1).await;
    a_while().await;
    assert_eq!(nodes_of(&world).await, Some((vec![Some(node(1)), Some(node(2))], vec![])));

    world.engines[1].detach(&run("r"), 1).await.expect("it was attached");
    drop(again);
    a_while().await;
    assert_eq!(nodes_of(&world).await, Some((vec![Some(node(1)), None], vec![])));

    world.engines[0].detach(&run("r"), 0).await.expect("it was attached");
    drop(connections);
    a_while().await;
    assert_eq!(state(&world).await, State::Finished);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_has_lost_a_rank_takes_in_none_of_the_next_launch() {
    let (world, mut connections) = two_ranks().await;
    let second = connections.pop();
    drop(connections);
    a_while().await;
    assert_eq!(nodes_of(&world).await, Some((vec![None, Some(node(2))], vec![0])));
    // Both ranks begin again, before the second of the old launch is lost.
    drop(second);
    world.attach(&run("r"), WORLD, 0).await;
    let _again = [connect(&world.engines[0], 0).await, connect(&world.engines[1], 1).await];
    a_while().await;
    assert_eq!(nodes_of(&world).await, Some((vec![Some(node(1)), Some(node(2))], vec![])));
    assert_eq!(state(&world).await, State::Running);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_rank_moves_to_the_node_that_it_connects_to() {
    let (world, mut connections) = two_ranks().await;
    let moved = connect(&world.engines[0], 1).await;
    let both_at_first = Some((vec![Some(node(1)), Some(node(1))], vec![]));
    assert_eq!(nodes_of(&world).await, both_at_first);
    drop(connections.pop());
    a_while().await;
    assert_eq!(nodes_of(&world).await, both_at_first, "the second node gives up none of the first");
    drop(moved);
    a_while().await;
    assert_eq!(nodes_of(&world).await, Some((vec![Some(node(1)), None], vec![1])));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_was_lost_by_mistake_is_attached_again_by_its_connection() {
    let (world, connections) = two_ranks().await;
    drop(connections);
    a_while().await;
    assert_eq!(state(&world).await, State::Interrupted);
    let _back = connect(&world.engines[1], 1).await;
    assert_eq!(nodes_of(&world).await, Some((vec![None, Some(node(2))], vec![])));
    assert_eq!(state(&world).await, State::Running);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_is_killed_while_it_waits_for_others_is_lost() {
    let world = World::new(1, "0.1").await;
    world.know_each_other(1).await;
    let engine = &world.engines[0];
    let create = CreateRun { id: run("r"), plan: world.plan.id(), virtual_ranks: VIRTUAL_RANKS };
    engine.create_run(create).await.expect("created");
    let attaching = {
        let engine = Arc::clone(engine);
        tokio::spawn(async move { engine.attach(&run("r"), 0, Attach { world: WORLD, epoch: 0 }).await })
    };
    while nodes_of(&world).await.is_none() {
        tokio::task::yield_now().await;
    }
    attaching.abort();
    a_while().await;
    assert_eq!((nodes_of(&world).await, state(&world).await), (None, State::Interrupted));
    world.end().await;
}
