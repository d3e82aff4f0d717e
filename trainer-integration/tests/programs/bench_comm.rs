//! `shardtrain bench-comm` as its user sees it.

use std::process::{Command, Output};

use serde_json::Value;

fn bench_comm(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shardtrain")).arg("bench-comm").args(arguments).output().unwrap()
}

#[test]
fn every_operation_and_algorithm_has_a_row_for_every_size() {
    for transport in ["tcp", "threads"] {
        let output = bench_comm(&[
            "--world",
            "3",
            "--transport",
            transport,
            "--sizes",
            "0B,1KiB",
            "--time",
            "20",
            "--json",
        ]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["transport"], &report["world"]), (&transport.into(), &3.into()));
        let rows = report["rows"].as_array().unwrap();
        let of = |operation: &str| rows.iter().filter(|row| row["operation"] == operation).count();
        let counts =
            ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send_receive"].map(of);
        assert_eq!(counts, [6, 2, 2, 1, 1, 1].map(|algorithms| 2 * algorithms));
        assert_eq!((of("barrier"), rows.len()), (1, 27));
        for row in rows {
            assert!(row["latency_us"].as_f64().unwrap() > 0.0, "{row}");
        }
        let chosen = rows.iter().filter(|row| row["is_chosen"] == true).count();
        assert_eq!(chosen, 6, "one algorithm for each size of the three operations that have a choice");
    }
}

#[test]
fn the_table_ends_with_the_crossovers() {
    let output = bench_comm(&["--operations", "all_reduce", "--sizes", "4KiB", "--transport", "threads"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("bus GB/s") && text.contains("4.0 KiB *"), "{text}");
    let crossovers = text.split("crossovers").nth(1).expect("a last section");
    assert!(crossovers.contains("4.0 KiB  all_reduce"), "{text}");
}

#[test]
fn mistakes_are_told() {
    for (arguments, part) in [
        (&["--world", "2", "--rank", "2", "--master", "127.0.0.1:1"][..], "ranks count from 0"),
        (&["--world", "2", "--rank", "1"], "--master"),
        (&["--sizes", "big"], "big"),
    ] {
        let output = bench_comm(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{said}");
    }
    let absent = bench_comm(&["--rank", "1", "--master", "127.0.0.1:9", "--join-timeout", "1"]);
    assert_eq!(absent.status.code(), Some(3));
}
