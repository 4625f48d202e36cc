# The image holds the static binary, a bundle of certificate authorities and a default configuration; nothing else.
# `make image` (deploy/image.sh) puts them into the build context and builds it.
FROM scratch
COPY root/ /
# Also what registry:3 does with its arguments: any file may be mounted over the default one.
USER 65532:65532
EXPOSE 5000 5001
ENTRYPOINT ["larder"]
CMD ["serve", "/etc/distribution/config.yml"]
