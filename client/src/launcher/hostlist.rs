//! Lists of hosts as Slurm writes them: `login1,gpu[07-09,12],rack[0-1]node[1-4]` (`scontrol show hostnames`).

/// The first host of a list. `None` if there is none, or the list has no such form.
pub(super) fn first(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        let Some(after) = rest[end..].strip_prefix('[') else { break };
        let (numbers, after) = after.split_once(']')?;
        let number = numbers
            .split([',', '-'])
            .next()
            .filter(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))?;
        host.push_str(number);
        rest = after;
    }
    Some(host).filter(|host| !host.is_empty() && !host.contains(']'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::first;

    #[test]
    fn the_first_host_is_that_of_scontrol() {
        for (list, host) in [
            ("login1", "login1"),
            ("login1,gpu[07-09]", "login1"),
            ("gpu[07-09,12],login1", "gpu07"),
            ("gpu[3]", "gpu3"),
            ("rack[0-1]node[1-4]", "rack0node1"),
            ("n[1,5-7].example.org", "n1.example.org"),
        ] {
            assert_eq!(first(list).as_deref(), Some(host), "{list}");
        }
        for list in ["", " ", "gpu[07-09", "gpu[]", "[", "gpu]", ",gpu"] {
            assert_eq!(first(list), None, "{list}");
        }
    }

    proptest! {
        #[test]
        fn no_list_is_a_panic(list in "[a-z0-9,\\[\\]. -]{0,40}") {
            if let Some(host) = first(&list) {
                prop_assert!(!host.contains([',', '[', ']']), "{host}");
            }
        }
    }
}
