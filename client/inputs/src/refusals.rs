//! The refusals of the Hugging Face Hub, with a way out. Pure.

use shardd_store::stores::{Refusal, Service};

const LOG_IN: &str = "check the dataset's owner and name; if it is private or gated, set HF_TOKEN, or run `hf auth \
                      login`, for an account that may read it";
const ACCEPT_TERMS: &str = "accept the terms on the dataset's page, and set HF_TOKEN, or run `hf auth login`, for the \
                            account that did";
const CHECK_NETWORK: &str = "check the network, and HF_ENDPOINT if it is set";

/// The meaning of an answer that is not a success: the Hub has codes for it.
pub(super) fn of_hub_answer(status: u16, code: &str, message: &str) -> Refusal {
    let message: String = message.chars().filter(|c| !c.is_control()).take(160).collect();
    let message = message.trim_end_matches(['.', ' ']);
    let reason = match (code, message) {
        ("", "") => format!("status {status}"),
        ("", message) => message.to_owned(),
        (code, "") => code.to_owned(),
        (code, message) => format!("{code}: {message}"),
    };
    match (status, code) {
        (_, "GatedRepo") => Refusal::Denied { reason, way_out: ACCEPT_TERMS },
        // The Hub does not tell whether there is a private dataset.
        (401 | 403, _) | (_, "RepoNotFound") => Refusal::Denied { reason, way_out: LOG_IN },
        (_, "RevisionNotFound") => {
            let reason =
                "the dataset has no such revision; give a branch, a tag or a commit of it after the @";
            Refusal::Other { reason: reason.to_owned() }
        }
        (404 | 410, _) => Refusal::NotFound,
        _ => Refusal::Other { reason: format!("the Hub answers with {reason}; try again later") },
    }
}

/// The same of an error within a file.
pub(super) fn of_hub_error(error: &object_store::Error) -> Refusal {
    match Refusal::of(Service::Web, error) {
        Refusal::Denied { reason, .. } => Refusal::Denied { reason, way_out: LOG_IN },
        Refusal::Unreachable { reason, .. } => Refusal::Unreachable { reason, way_out: CHECK_NETWORK },
        other => other,
    }
}

/// The same of a Hub that was not reached, or fell silent.
pub(super) fn of_hub_request(error: &reqwest::Error) -> Refusal {
    match Refusal::of_request(error) {
        Refusal::Unreachable { reason, .. } => Refusal::Unreachable { reason, way_out: CHECK_NETWORK },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_way_out() {
        for (status, code, way_out) in [
            (401, "RepoNotFound", "set HF_TOKEN"),
            (401, "", "set HF_TOKEN"),
            (404, "RepoNotFound", "check the dataset's owner and name"),
            (403, "GatedRepo", "accept the terms"),
            (404, "RevisionNotFound", "after the @"),
            (404, "EntryNotFound", "check the URL"),
            (500, "", "try again later"),
        ] {
            let text = of_hub_answer(status, code, "").to_string();
            assert!(text.contains(way_out), "{status} {code}: {text}");
        }
        let text = of_hub_answer(401, "", "Invalid credentials in Authorization header.").to_string();
        assert!(
            text.starts_with("access denied (Invalid credentials in Authorization header); check"),
            "{text}"
        );
    }
}
