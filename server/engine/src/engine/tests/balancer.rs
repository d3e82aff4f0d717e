//! Nodes that are slow, as placements follow the balancer.

use shardd_api::balancer::{Mode, Settings, Share};

use super::*;

/// Lets the disks of the nodes take this time for grains during some looks.
async fn looks(world: &World, count: usize, millis: [u64; 3]) {
    for _ in 0..count {
        for (engine, millis) in world.engines.iter().zip(millis) {
            (0..9).for_each(|_| engine.neighbours.health.read_took(Duration::from_millis(millis)));
        }
        tokio::time::sleep(Duration::from_millis(10_001)).await;
    }
}

async fn hosted(world: &World) -> Vec<usize> {
    let key = format!("{}{}", keys::PLACEMENTS, run("r"));
    let entry = world.meta.get(&key).await.expect("the metastore answers").expect("it is placed");
    let placement: Placement = parse(&entry).expect("a placement");
    (1..=3).map(|number| placement.hosted_by(&node(number)).count()).collect()
}

fn mode(mode: Mode) -> Settings {
    Settings { mode, ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn a_slow_node_hosts_less_until_it_has_recovered() {
    let world = World::new(3, "0.1").await;
    world.know_each_other(3).await;
    world.attach(&run("r"), 3, 0).await;
    assert_eq!(hosted(&world).await, [4, 4, 4]);

    let (well, slow) = ([6, 6, 6], [6, 6, 60]);
    looks(&world, 6, slow).await;
    let journal = world.engines[0].balancer().journal;
    assert_eq!((journal[0].node.clone(), journal[0].carried_out), (node(3), false));
    assert_eq!(hosted(&world).await, [4, 4, 4], "it is only observed");

    world.engines[1].set_balancer(mode(Mode::On)).await.expect("set");
    looks(&world, 12, slow).await;
    assert_eq!(world.engines[2].balancer().share(&node(3)), Share::LEAST);
    let now = hosted(&world).await;
    assert_eq!((now[2], now[0] + now[1]), (1, 11));
    world.read_epoch(&run("r"), 3, 0, async |_, _| {}).await;

    // The mean of late fades, and twelve looks have to agree.
    looks(&world, 60, well).await;
    assert_eq!(world.engines[0].balancer().share(&node(3)), Share::FULL);
    assert_eq!(hosted(&world).await, [4, 4, 4]);
    let journal = world.engines[0].balancer().journal;
    let carried_out = journal.iter().filter(|decision| decision.carried_out);
    let course: Vec<(Share, Share)> = carried_out.map(|decision| (decision.from, decision.to)).collect();
    assert_eq!(course[0], (Share::FULL, Share::LEAST));
    assert!(course[1..].iter().all(|(from, to)| from < to), "as the mean of late fades: {course:?}");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_balancer_all_host_the_same_again() {
    let world = World::new(3, "0.1").await;
    world.know_each_other(3).await;
    world.attach(&run("r"), 3, 0).await;
    world.engines[0].set_balancer(mode(Mode::On)).await.expect("set");
    looks(&world, 12, [6, 6, 60]).await;
    assert_eq!(hosted(&world).await[2], 1);
    world.engines[0].set_balancer(mode(Mode::Off)).await.expect("set");
    looks(&world, 6, [6, 6, 60]).await;
    assert_eq!(hosted(&world).await, [4, 4, 4]);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_record_of_a_later_release_is_left_alone() {
    let world = World::new(3, "0.1").await;
    world.know_each_other(3).await;
    world.attach(&run("r"), 3, 0).await;
    let later = br#"{"settings":{"mode":"predict"}}"#.to_vec();
    world.meta.put("balancer/record", later.clone(), Expected::Any, None).await.expect("put");
    looks(&world, 12, [6, 6, 60]).await;
    assert_eq!(hosted(&world).await, [4, 4, 4]);
    let refused = world.engines[0].set_balancer(mode(Mode::On)).await.expect_err("it is not understood");
    assert!(refused.to_string().contains("balancer/record"), "{refused}");
    assert_eq!(world.meta.get("balancer/record").await.expect("there").expect("there").value, later);
    world.end().await;
}
