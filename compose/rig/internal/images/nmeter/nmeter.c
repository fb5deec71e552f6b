/* nmeter of the images busybox and agnhost, which Debian's busybox lacks: what
 * upstream's specs ask it for, the time of day in milliseconds, a line at a time until
 * nobody reads any more. */
#include <stdio.h>
#include <string.h>
#include <time.h>

int main(int argc, char **argv)
{
	struct timespec now;
	struct tm day;

	if (argc != 3 || strcmp(argv[1], "-d0") || strcmp(argv[2], "%3t")) {
		fprintf(stderr, "nmeter: this one only has: nmeter -d0 %%3t\n");
		return 1;
	}
	do {
		clock_gettime(CLOCK_REALTIME, &now);
		localtime_r(&now.tv_sec, &day);
		printf("%02d:%02d:%02d.%03ld\n", day.tm_hour, day.tm_min, day.tm_sec, now.tv_nsec / 1000000);
	} while (!fflush(stdout));
	return 0;
}
