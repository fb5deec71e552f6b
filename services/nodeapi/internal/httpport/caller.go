package httpport

import (
	"context"
	"crypto/sha256"
	"net/http"
	"sync"
)

// key is the connection's in a request's context.
type key struct{}

// credentialsKey is that of the request's credentials.
type credentialsKey struct{}

// credentials are a digest of what a request says of its caller.
type credentials [sha256.Size]byte

func credentialsOf(h http.Header) *credentials {
	digest := sha256.New()
	for _, name := range []string{"Authorization", "Sec-Websocket-Protocol"} {
		for _, value := range h[name] {
			digest.Write([]byte(name + value + "\n"))
		}
	}
	return (*credentials)(digest.Sum(nil))
}

// charged has connections pay for their requests, and keeps the credentials, which authentication takes off.
func charged(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in, _ := r.Context().Value(key{}).(*conn)
		if in == nil {
			h.ServeHTTP(w, r)
			return
		}
		bytes := requestWeight
		for name, values := range r.Header {
			bytes += fieldWeight + len(name)
			for _, value := range values {
				bytes += fieldWeight + len(value)
			}
		}
		in.owner.charge(in, int64(bytes))
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), credentialsKey{}, credentialsOf(r.Header))))
	})
}

// Authenticated reports whether the caller at the other end of a request's connection is known: by a client
// certificate, or by a request with the same credentials that was allowed to him.
func Authenticated(ctx context.Context) bool {
	in, _ := ctx.Value(key{}).(*conn)
	if in == nil || !in.authenticated.Load() {
		return false
	}
	allowed, presented := in.credentials.Load(), presentedIn(ctx)
	return in.certified() || allowed != nil && presented != nil && *allowed == *presented
}

// Memo is what is kept of a caller for as long as his connection lasts.
type Memo struct {
	sync.Mutex
	Value any
}

// MemoOf returns that of a request's connection; nil if it has none.
func MemoOf(ctx context.Context) *Memo {
	if in, _ := ctx.Value(key{}).(*conn); in != nil {
		return &in.memo
	}
	return nil
}

// SetAuthenticated says that he is known.
func SetAuthenticated(ctx context.Context) {
	if in, _ := ctx.Value(key{}).(*conn); in != nil {
		in.credentials.Store(presentedIn(ctx))
		in.owner.allow(in)
	}
}

func presentedIn(ctx context.Context) *credentials {
	presented, _ := ctx.Value(credentialsKey{}).(*credentials)
	return presented
}
