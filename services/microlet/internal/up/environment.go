package up

import (
	"slices"
	"strings"

	"github.com/microlet/microlet/proto/role"
)

// Variables of up's environment that its services get. What else an operator or a unit's file put there, such as
// credentials, is not theirs.
var (
	// commonVariables are for Go's runtime, and for the programs that services start.
	commonVariables = []string{"PATH", "TZ", "LANG", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK"}
	// apiVariables say how to reach the API server and other servers outside the node, and what client-go does.
	apiVariables = []string{
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE",
		"SSL_CERT_DIR",
		"DISABLE_HTTP2", "HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS",
	}
)

// clientFeature begins the names of client-go's feature gates.
const clientFeature = "KUBE_FEATURE_"

// environment is what a service gets of up's.
func environment(all []string, id role.Identity) []string {
	var own []string
	for _, variable := range all {
		name, _, _ := strings.Cut(variable, "=")
		api := slices.Contains(apiVariables, name) || strings.HasPrefix(name, clientFeature)
		if slices.Contains(commonVariables, name) || api && id.APICredentials {
			own = append(own, variable)
		}
	}
	return own
}
