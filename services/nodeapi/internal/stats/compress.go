package stats

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// writers are compressors that are not in use. Each has some 100 KiB of state.
var writers = sync.Pool{New: func() any {
	// Fast, because the next reader comes in seconds, and text like this shrinks tenfold anyway.
	w, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is one of the package's own
	}
	return w
}}

// compressed returns where the body goes: through gzip if the caller takes that, as Prometheus does. What finish
// returns is the error of the last write. Without finish, the body stays incomplete, and its reader can see that.
func compressed(w http.ResponseWriter, r *http.Request) (body io.Writer, finish func() error) {
	if !takesGzip(r.Header.Values("Accept-Encoding")) {
		return w, func() error { return nil }
	}
	w.Header().Set("Content-Encoding", "gzip")
	z := writers.Get().(*gzip.Writer)
	z.Reset(w)
	return z, func() error {
		err := z.Close()
		z.Reset(io.Discard) // it must not keep the connection
		writers.Put(z)
		return err
	}
}

// takesGzip reports whether values of Accept-Encoding name gzip with a weight above zero (RFC 9110, 12.5.3).
func takesGzip(values []string) bool {
	for _, value := range values {
		for coding := range strings.SplitSeq(value, ",") {
			name, parameters, _ := strings.Cut(coding, ";")
			if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
				continue
			}
			key, weight, weighted := strings.Cut(parameters, "=")
			if !weighted || !strings.EqualFold(strings.TrimSpace(key), "q") {
				return true
			}
			q, err := strconv.ParseFloat(strings.TrimSpace(weight), 64)
			return err == nil && q > 0
		}
	}
	return false
}
