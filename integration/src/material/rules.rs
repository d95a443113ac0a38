//! The ACL rules of docs/operations.md, for tests that try them.

const OPERATIONS: &str = include_str!("../../../docs/operations.md");

/// The lines of one use of the page, in its order: what comes first is given first.
#[derive(Clone, Copy, Debug)]
pub struct AclRules {
    /// Who sends the commands: the user `app`.
    pub plain: &'static str,
    /// Besides, for `app` with one of the clients.
    pub clients: &'static str,
    /// Besides, for `app` with `DLOCK.GUARD`.
    pub guard: &'static str,
    /// Besides, for `app` to hear unlock messages.
    pub messages: &'static str,
    /// The user `ops`.
    pub operator: &'static str,
    /// The user `exporter`.
    pub exporter: &'static str,
}

impl AclRules {
    /// What a new user's password is.
    pub const PASSWORD: &'static str = "secret";

    /// The rules of the page.
    ///
    /// # Panics
    /// When the page has others.
    pub fn of_the_page() -> AclRules {
        let section = OPERATIONS.split("\n## ACL\n").nth(1);
        let section = section.and_then(|rest| rest.split("\n## ").next());
        let lines = section.expect("the section").lines();
        let rules: Vec<&str> = lines
            .filter(|line| line.starts_with("ACL SETUSER "))
            .collect();
        let [plain, clients, guard, messages, operator, exporter] = rules[..] else {
            panic!("{rules:?}");
        };
        AclRules {
            plain,
            clients,
            guard,
            messages,
            operator,
            exporter,
        }
    }
}
