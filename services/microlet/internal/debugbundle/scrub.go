package debugbundle

import (
	"regexp"
	"sync"
)

// removed stands for what was a secret.
const removed = "<removed>"

// secrets are the forms that the secrets of a node have. Of each, the groups stay.
//
// Nothing that is collected should hold one; this is for what an error message of a library, a runtime or a plugin
// quotes. They are compiled at the first use, since every process of the node has this package.
var secrets = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		// Private keys. One that is cut off has no end.
		regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`),
		// JSON Web Tokens, as service accounts have them.
		regexp.MustCompile(`()eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*()`),
		// Seeds of the bus's keys.
		regexp.MustCompile(`()\bS[UANCOX][A-Z2-7]{56}\b()`),
		// Bootstrap tokens.
		regexp.MustCompile(`\b([a-z0-9]{6}\.)[a-z0-9]{16}\b()`),
		// Headers and fields.
		regexp.MustCompile(`(?i)(\bauthorization\\?["']?\s*[:=]\s*\[?\\?["']?(?:basic|bearer)?\s*)[^\s"'\\\],}]+()`),
		regexp.MustCompile(`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}()`),
		regexp.MustCompile(`(?i)(\b[\w-]*(?:password|passwd|secret[_-]?key|access[_-]?key|client[_-]?secret|` +
			`auth[_-]?token|id[_-]?token|refresh[_-]?token|` +
			`client-key-data|api[_-]?key)\\?["']?\s*[:=]\s*\\?["']?)[^\s"'\\,}]+()`),
		// Passwords in URLs.
		regexp.MustCompile(`(\b[a-z][a-z0-9+.-]*://[^/\s:@"]*:)[^/\s@"]+(@)`),
	}
})

// Scrub replaces what has the form of a secret.
func Scrub(data []byte) []byte {
	for _, form := range secrets() {
		data = form.ReplaceAll(data, []byte("${1}"+removed+"${2}"))
	}
	return data
}
