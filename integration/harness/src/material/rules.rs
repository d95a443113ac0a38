//! The ACL rules of docs/operations.md, for tests that try them.

const OPERATIONS: &str = include_str!("../../../../docs/operations.md");

/// The lines of one use of the page, in its order: earlier rules are given first.
#[derive(Clone, Copy, Debug)]
pub struct AclRules {
    /// The user `app`, which sends the commands.
    pub plain: &'static str,
    /// Added for `app` with one of the clients.
    pub clients: &'static str,
    /// Added for `app` with `DLOCK.GUARD`.
    pub guard: &'static str,
    /// Added for `app` to receive unlock messages.
    pub messages: &'static str,
    /// The user `ops`.
    pub operator: &'static str,
    /// The user `exporter`.
    pub exporter: &'static str,
}

impl AclRules {
    /// The password of a new user.
    pub const PASSWORD: &'static str = "secret";

    /// Returns the rules of the page.
    ///
    /// # Panics
    /// If the page has others.
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
