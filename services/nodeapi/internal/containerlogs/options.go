// Package containerlogs reads the log of a container.
//
// The query of the request, the status of the pod and the runtime determine the file and the options. The error
// messages are the kubelet's, because kubectl shows them.
package containerlogs

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrInvalid is wrapped by the error of a query that can be read and makes no sense.
var ErrInvalid = errors.New("invalid log options")

// ParseOptions reads the query of a request for logs: core/v1 PodLogOptions, and the older "tail". Of
// a parameter that is given twice the first counts.
func ParseOptions(q url.Values) (*v1.PodLogOptions, error) {
	o := &v1.PodLogOptions{Container: q.Get("container")}
	tail := "tailLines"
	if q.Get("tail") != "" {
		tail = "tail"
	}
	for name, to := range map[string]**int64{
		"sinceSeconds": &o.SinceSeconds,
		"limitBytes":   &o.LimitBytes,
		tail:           &o.TailLines,
	} {
		text := q.Get(name)
		if text == "" || name == "tail" && text == "all" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s is %q: give a whole number", name, text)
		}
		*to = &n
	}
	for name, to := range map[string]*bool{
		"follow":                       &o.Follow,
		"previous":                     &o.Previous,
		"timestamps":                   &o.Timestamps,
		"insecureSkipTLSVerifyBackend": &o.InsecureSkipTLSVerifyBackend,
	} {
		// As in the API: given without a value it is true, and only "false" and "0" are false.
		if values, ok := q[name]; ok && len(values) > 0 {
			*to = values[0] != "false" && values[0] != "0"
		}
	}
	if text := q.Get("sinceTime"); text != "" {
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, fmt.Errorf("sinceTime is %q: give a time as of RFC 3339", text)
		}
		o.SinceTime = &metav1.Time{Time: t}
	}
	if text := q.Get("stream"); text != "" {
		o.Stream = &text
	}
	return o, validate(o)
}

func validate(o *v1.PodLogOptions) error {
	var problems []error
	add := func(bad bool, text string) {
		if bad {
			problems = append(problems, fmt.Errorf("%w: %s", ErrInvalid, text))
		}
	}
	add(o.TailLines != nil && *o.TailLines < 0, "tailLines must not be negative")
	add(o.LimitBytes != nil && *o.LimitBytes < 1, "limitBytes must be positive")
	add(o.SinceSeconds != nil && o.SinceTime != nil, "sinceSeconds and sinceTime must not both be given")
	add(o.SinceSeconds != nil && *o.SinceSeconds < 1, "sinceSeconds must be positive")
	if o.Stream != nil {
		s := *o.Stream
		add(s != v1.LogStreamAll && s != v1.LogStreamStdout && s != v1.LogStreamStderr,
			"stream must be All, Stdout or Stderr")
		add(s != v1.LogStreamAll && o.TailLines != nil, "tailLines and a single stream must not both be given")
	}
	return errors.Join(problems...)
}
