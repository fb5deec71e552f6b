package auth

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	unionauth "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/nodeapi/internal/httpport"
)

// Options of an Auth.
type Options struct {
	NodeName string
	// Authentication and Authorization are the KubeletConfiguration's.
	Authentication kubeletv1beta1.KubeletAuthentication
	Authorization  kubeletv1beta1.KubeletAuthorization
	// ClientCA verifies client certificates; nil verifies none.
	ClientCA dynamiccertificates.CAContentProvider
	// Reviews is nodestatus.
	Reviews nodestatusv1.ReviewServiceClient
	Log     *slog.Logger
}

// Auth authenticates and authorizes requests. It is safe for concurrent use.
type Auth struct {
	nodeName string
	who      authenticator.Request
	may      authorizer.UnconditionalAuthorizer
	// certificates authenticates by client certificate alone; nil knows none.
	certificates authenticator.Request
	log          *slog.Logger
	// unknown and unreviewed bound the log of callers who were not authenticated, or not authorized for want of an answer.
	unknown, unreviewed rate.Sometimes
}

const (
	// logPeriod is how often it is logged that a caller was refused: any caller can cause refusals, as often as it likes.
	logPeriod = 10 * time.Second
	// maxLogged bounds what a line of the log has of what a caller sent, in bytes.
	maxLogged = 1 << 10
)

// beginning cuts a text of a caller for the log.
func beginning(text string) string {
	if len(text) <= maxLogged {
		return text
	}
	return strings.ToValidUTF8(text[:maxLogged], "") + "…"
}

// New puts together what the configuration asks for.
func New(o Options) (*Auth, error) {
	a := &Auth{
		nodeName: o.NodeName, log: o.Log,
		unknown:    rate.Sometimes{First: 1, Interval: logPeriod},
		unreviewed: rate.Sometimes{First: 1, Interval: logPeriod},
	}
	var ways []authenticator.Request
	if o.ClientCA != nil {
		a.certificates = x509.NewDynamic(o.ClientCA.VerifyOptions, x509.CommonNameUserConversion)
		ways = append(ways, sparing{a.certificates, o.ClientCA.CurrentCABundleContent})
	}
	if *o.Authentication.Webhook.Enabled {
		ttl := o.Authentication.Webhook.CacheTTL.Duration
		cached := cache.New(tokens{o.Reviews}, false, ttl, ttl)
		ways = append(ways, bearertoken.New(cached), websocket.NewProtocolAuthenticator(cached))
	}
	if len(ways) > 0 {
		a.who = group.NewAuthenticatedGroupAdder(unionauth.New(ways...))
	}
	if *o.Authentication.Anonymous.Enabled {
		anonymously := anonymous.NewAuthenticator(nil)
		if a.who == nil {
			a.who = anonymously
		} else {
			// A wrong credential is refused; only who brings none is anonymous.
			a.who = unionauth.NewFailOnError(a.who, anonymously)
		}
	}
	if a.who == nil {
		return nil,
			errors.New("authentication: no method is on, so no user could sign in: set authentication.x509.clientCAFile, or " +
				"authentication.webhook.enabled")
	}
	switch o.Authorization.Mode {
	case kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow:
		a.may = always{}
	case kubeletv1beta1.KubeletAuthorizationModeWebhook:
		a.may = newAccess(o.Reviews, o.Authorization.Webhook.CacheAuthorizedTTL.Duration,
			o.Authorization.Webhook.CacheUnauthorizedTTL.Duration)
	default:
		return nil, fmt.Errorf("authorization.mode is %q: use Webhook or AlwaysAllow", o.Authorization.Mode)
	}
	return a, nil
}

// always allows everything, which an operator asked for with authorization.mode: AlwaysAllow.
type always struct{}

func (always) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

// Certified returns the name of the user whom a connection's client certificate authenticates, if it does.
func (a *Auth) Certified(state *tls.ConnectionState) (user string, ok bool) {
	if a.certificates == nil {
		return "", false
	}
	answer, ok, err := a.certificates.AuthenticateRequest(&http.Request{TLS: state})
	if err != nil || !ok {
		return "", false
	}
	return answer.User.GetName(), true
}

// sparing authenticates by client certificate, which it looks at every 10 s for a connection, and at once when the
// authority has changed. The author of the certificate decides how long a look takes.
type sparing struct {
	authenticator.Request
	// authority returns the certificates of those who may sign, as PEM.
	authority func() []byte
}

// look is what a connection's certificate said of the caller.
type look struct {
	answer    *authenticator.Response
	ok        bool
	err       error
	until     time.Time
	authority []byte
}

// lookedFor is how long that holds: so long a certificate may be used after its end.
const lookedFor = 10 * time.Second

// AuthenticateRequest implements authenticator.Request.
func (s sparing) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	memo := httpport.MemoOf(r.Context())
	if memo == nil {
		return s.Request.AuthenticateRequest(r)
	}
	memo.Lock() // requests that come at the same time share a look
	defer memo.Unlock()
	last, known := memo.Value.(look)
	authority := s.authority()
	if !known || !bytes.Equal(last.authority, authority) || !time.Now().Before(last.until) {
		last.authority = authority
		last.answer, last.ok, last.err = s.Request.AuthenticateRequest(r)
		last.until = time.Now().Add(lookedFor)
		memo.Value = last
	}
	return last.answer, last.ok, last.err
}

// Refusal is the answer to a request that may not pass.
type Refusal struct {
	// Code is an HTTP status code.
	Code int
	Text string
}

// Check reports whether a request may do what needs one of these subresources of the node. Nil is yes.
func (a *Auth) Check(r *http.Request, subresources []string) *Refusal {
	// The authenticator removes the token from the request, so that nothing behind it can pass it on.
	answer, ok, err := a.who.AuthenticateRequest(r)
	if err != nil {
		a.unknown.Do(func() {
			a.log.Info("caller could not be authenticated", "remote", r.RemoteAddr, logkey.Path, beginning(r.URL.Path),
				logkey.Err, beginning(err.Error()))
		})
	}
	if err != nil || !ok {
		return &Refusal{http.StatusUnauthorized, "Unauthorized"}
	}
	verb := verbOf(r.Method)
	for _, sub := range subresources {
		decision, _, err := a.may.Authorize(r.Context(), a.attributes(answer.User, verb, sub, r.URL.Path))
		if err != nil {
			a.unreviewed.Do(func() {
				a.log.Error("caller could not be authorized", "user", beginning(answer.User.GetName()), "verb", verb,
					"subresource", sub, logkey.Err, beginning(err.Error()))
			})
			return &Refusal{http.StatusInternalServerError,
				fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource=%s)",
					answer.User.GetName(), verb, sub)}
		}
		if decision == authorizer.DecisionAllow {
			// An anonymous caller counts as known only where every caller may do everything.
			if _, open := a.may.(always); open || answer.User.GetName() != user.Anonymous {
				httpport.SetAuthenticated(r.Context())
			}
			return nil
		}
	}
	return &Refusal{http.StatusForbidden,
		fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=[%s])\n",
			answer.User.GetName(), verb, strings.Join(subresources, " "))}
}

func (a *Auth) attributes(who user.Info, verb, subresource, path string) authorizer.Attributes {
	return authorizer.AttributesRecord{
		User: who, Verb: verb, APIVersion: "v1", Resource: "nodes", Subresource: subresource, Name: a.nodeName,
		ResourceRequest: true, Path: path,
	}
}

// verbOf is the API's verb for a method. Others have none, and no rule but * allows that.
func verbOf(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodGet:
		return "get"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}
