//! What `shardtrain` says to devices and transports that there are not.

use std::process::Command;

/// Exit code, and its output on standard error.
fn shardtrain(arguments: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
    let output = command.args(["--store", "/nowhere", "--dataset", "digits"]).args(arguments.split(' '));
    let output = output.output().expect("it was built for this");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn who_asks_for_what_there_is_not_is_told_the_way_out() {
    let mut cases = vec![
        ("--precision fp16", "give f32, bf16 or f16"),
        ("--transport nccl", "give --device cuda"),
        ("--transport nccl --device cuda:0 --reduce fast --compress int8", "leave out --compress"),
        (
            "--transport nccl --device cuda:0 --reduce fast --reduce-dtype bf16",
            "leave out --compress and --reduce-dtype",
        ),
        ("--transport nccl --device cuda:0 --reduce-dtype bf16", "leave out --compress and --reduce-dtype"),
        ("--reduce fast --compress int8 --reduce-dtype bf16", "leave one of the two out"),
        ("--reduce-dtype f16", "give f32 or bf16"),
        ("--device cuda:x", "give cpu, cuda:0, wgpu"),
    ];
    if cfg!(not(feature = "cuda")) {
        cases.push(("--device cuda:0", "--features cuda"));
    }
    if cfg!(feature = "wgpu") {
        cases.push(("--device wgpu:7", "give --device cpu"));
    } else {
        cases.push(("--device wgpu", "--features wgpu"));
    }
    for (arguments, way_out) in cases {
        let (code, said) = shardtrain(arguments);
        assert_eq!(code, Some(2), "{arguments}: {said}");
        assert!(said.contains(way_out), "{arguments}: {said}");
    }
}
